"""What travels between stages, described without torch graphs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ValueSpec:
    """A value that enters or leaves a stage.

    Attributes:
        name: wire name, the same on both sides of a cut.
        dtype: of a tensor, None otherwise.
        is_tensor: False for a plain number (a size) or, among a model's outputs, any plain value.
        differentiable: a floating or complex tensor that depends on a trainable parameter.
    """

    name: str
    dtype: torch.dtype | None
    is_tensor: bool
    differentiable: bool
