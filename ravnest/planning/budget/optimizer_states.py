"""Asks an optimizer what it keeps and what a step needs, by a step of it on tensors without values.

Everything that lives after the step and did not before is its state, wherever it keeps it; the most
that lived during the step beyond that are its temporaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.capture.diagnosis import first_lines
from ravnest.capture.tracking import LiveStorages
from ravnest.errors import ConfigError
from ravnest.planning.inputs.settings import OptimizerCost

OptimizerFactory = Callable[..., Any]

_MOST_BYTES = 64 << 20  # of the parameters, where values are needed
_JOINT = 1.5  # four parameters need this much more than two where they are stepped together
_SCALAR_BYTES = 8


@dataclass(frozen=True, slots=True)
class _Step:
    """What one step did.

    Attributes:
        parameter_bytes: of what was stepped.
        state_bytes: left behind, tensors of one element apart.
        scalar_bytes: left behind in tensors of one element.
        temporary_bytes: at most, besides.
    """

    parameter_bytes: int
    state_bytes: int
    scalar_bytes: int
    temporary_bytes: int


def ask_optimizer(
    optimizer: OptimizerFactory,
    optimizer_params: Mapping[str, Any] | None,
    parameters: Sequence[torch.Tensor],
) -> OptimizerCost:
    """What `optimizer` costs for a model.

    Args:
        optimizer: a torch.optim class, or `f(params, **optimizer_params)`, as `Node` takes it.
        optimizer_params: keyword arguments for it.
        parameters: the trainable ones; only their shapes and dtypes count. Where states depend on
            the shape, as Adafactor's, the cost is the average over them.

    Raises:
        ConfigError: it cannot be built, or takes no step without more than gradients.
    """
    name = _name(optimizer)
    given = dict(optimizer_params or {})
    if not parameters:
        return OptimizerCost(name, 0.0)
    try:
        try:
            steps = _steps(optimizer, given, [_like(each, "meta") for each in parameters])
        except Exception:  # it looks at values
            steps = _steps(optimizer, given, _small(parameters))
    except Exception as error:
        raise ConfigError(
            f"optimizer={name} cannot be asked what it keeps: {type(error).__name__}: "
            f"{first_lines(str(error))}; expected a torch.optim class, or a function of parameters "
            "that returns something whose step() needs nothing but gradients",
            hint="see that optimizer_params are what it takes; or say how many tensors of a "
            "parameter's size it keeps: optimizer_states=2 for Adam, 1 for momentum, 0 for SGD",
        ) from error
    whole, two, four, together = steps
    is_joint = four.temporary_bytes > _JOINT * two.temporary_bytes
    largest_bytes = two.parameter_bytes // 2
    return OptimizerCost(
        name,
        state_bytes=whole.state_bytes / whole.parameter_bytes,
        tensor_bytes=-(-whole.scalar_bytes // len(parameters)),
        step_bytes=0.0 if is_joint else two.temporary_bytes / largest_bytes,
        joint_step_bytes=four.temporary_bytes / four.parameter_bytes if is_joint else 0.0,
        accelerator_step_bytes=together.temporary_bytes / together.parameter_bytes,
    )


def _steps(
    optimizer: OptimizerFactory, given: Mapping[str, Any], parameters: Sequence[torch.Tensor]
) -> tuple[_Step, _Step, _Step, _Step]:
    """A step of all parameters, of two as large as the largest, of four, and of all together."""
    largest = max(parameters, key=lambda each: each.nbytes)
    return (
        _step(optimizer, given, parameters),
        _step(optimizer, given, [largest] * 2),
        _step(optimizer, given, [largest] * 4),
        _step(optimizer, given, parameters, together=True),
    )


def _step(
    optimizer: OptimizerFactory,
    given: Mapping[str, Any],
    tensors: Sequence[torch.Tensor],
    *,
    together: bool = False,
) -> _Step:
    """One step of new parameters like these; `together` where that is left to torch."""
    parameters = [torch.nn.Parameter(torch.zeros_like(each)) for each in tensors]
    gradients = [torch.zeros_like(each) for each in parameters]
    for each, gradient in zip(parameters, gradients, strict=True):
        each.grad = gradient
    live = LiveStorages((*parameters, *gradients))
    peak_bytes = 0

    def note(hidden_bytes: int) -> None:
        nonlocal peak_bytes
        peak_bytes = max(peak_bytes, live.num_bytes + hidden_bytes)

    live.observed = note
    with live:
        made = optimizer(parameters, **given)
        for group in made.param_groups if together else ():
            if group.get("foreach", 0) is None and not group.get("fused"):
                group["foreach"] = True
        made.step()
    left = live.sizes()
    scalar_bytes = sum(size for size in left if size <= _SCALAR_BYTES)
    made.zero_grad(set_to_none=True)
    return _Step(
        parameter_bytes=sum(each.nbytes for each in parameters),
        state_bytes=sum(left) - scalar_bytes,
        scalar_bytes=scalar_bytes,
        temporary_bytes=max(0, peak_bytes - sum(left)),
    )


def _name(optimizer: OptimizerFactory) -> str:
    module = getattr(optimizer, "__module__", type(optimizer).__module__)
    name = getattr(optimizer, "__qualname__", type(optimizer).__qualname__)
    return f"{module}.{name}"


def _small(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Zeros of the same shapes, with dimensions cut short as far as memory demands."""
    largest = max((size for each in parameters for size in each.shape), default=1)
    while True:
        cut = [each[tuple(slice(largest) for _ in each.shape)] for each in parameters]
        if largest == 1 or sum(each.nbytes for each in cut) <= _MOST_BYTES:
            return [torch.zeros(each.shape, dtype=each.dtype) for each in cut]
        largest //= 2


def _like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
