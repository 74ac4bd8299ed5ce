"""Where a microbatch's values enter a stage, and their gradients leave it."""

from __future__ import annotations

from typing import Any

import torch

_FOLLOWED = torch.zeros((), requires_grad=True)  # without which autograd would not follow values


class Entrance:
    """Takes the gradients of one microbatch's inputs as they come.

    A leaf of autograd would have its gradient in the order of its own dimensions in memory, at the
    price of a copy where that is another. In one process there is no leaf here, and what the
    operators before make of a gradient depends on that order in the last bits.

    Attributes:
        gradients: by name, of those inputs that have one.
    """

    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}

    def admit(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """The same values, with a gradient that goes to `gradients`; shares their memory."""
        entered: torch.Tensor = _Enter.apply(  # type: ignore[no-untyped-call]
            _FOLLOWED, values, name, self.gradients
        )
        return entered


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        token: torch.Tensor,
        values: torch.Tensor,
        name: str,
        gradients: dict[str, torch.Tensor],
    ) -> torch.Tensor:
        ctx.name, ctx.gradients = name, gradients
        ctx.set_materialize_grads(False)
        return values.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[None, None, None, None]:
        if gradients[0] is not None:
            ctx.gradients[ctx.name] = gradients[0]
        return None, None, None, None
