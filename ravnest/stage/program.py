"""What the engine needs of a captured stage graph: a pure function of state and inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

Value = Any  # a tensor, or an int, float or bool that crosses a cut


class ProgramValue(Protocol):
    """A value on the way into or out of a stage."""

    @property
    def name(self) -> str:
        """Its name, the same on both sides of a cut."""

    @property
    def differentiable(self) -> bool:
        """Whether a gradient comes back for it."""


class Program(Protocol):
    """One mode (train or eval) of one stage."""

    @property
    def inputs(self) -> Sequence[ProgramValue]:
        """Values it takes."""

    @property
    def outputs(self) -> Sequence[ProgramValue]:
        """Values it returns."""

    @property
    def written(self) -> frozenset[str]:
        """Names of the state that a call changes in place."""

    def __call__(
        self,
        state: Mapping[str, torch.Tensor],
        inputs: Mapping[str, Value],
        seed_operator: Callable[[int], None],
    ) -> dict[str, Value]:
        """Runs it; buffers in `state` are updated in place as the model does."""
