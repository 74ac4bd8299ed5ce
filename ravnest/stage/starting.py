"""Where a backward pass starts: at a loss, or at outputs whose gradients are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ravnest.errors import TrainingError
from ravnest.plan.identity import MicrobatchId
from ravnest.stage.copying import DeviceCopier
from ravnest.stage.program import Value

Start = tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None]]
"""Tensors with a graph, and the gradient that each starts with: None for a loss's."""


def checked_loss(loss: Any, microbatch: MicrobatchId) -> torch.Tensor:
    """What a criterion returned; TrainingError unless it is one number that can be derived."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise TrainingError(
            f"the criterion returned {found} for microbatch {microbatch}, expected one number",
            hint="reduce the loss, with .mean() or .sum(), before returning it",
        )
    if not loss.requires_grad:
        raise TrainingError(
            f"the criterion's loss for microbatch {microbatch} does not depend on the predictions",
            hint="compute it from `predictions` without detach() or no_grad()",
        )
    return loss


def gradients_of_criterion(
    loss: torch.Tensor, outputs: Mapping[str, Value]
) -> dict[str, torch.Tensor]:
    """The first part of a leaf's backward pass: from the loss to the program's outputs."""
    differentiable = {
        name: value
        for name, value in outputs.items()
        if isinstance(value, torch.Tensor) and value.requires_grad
    }
    found = torch.autograd.grad([loss], list(differentiable.values()), allow_unused=True)
    named = zip(differentiable, found, strict=True)
    return {name: each for name, each in named if each is not None}


def start_at_outputs(
    outputs: Mapping[str, Value],
    gradients: Mapping[str, torch.Tensor],
    microbatch: MicrobatchId,
    copier: DeviceCopier,
) -> Start:
    """Starts at the outputs that got a gradient.

    Raises:
        TrainingError: a gradient belongs to no differentiable output, or has another shape.
    """
    roots, starts = [], []
    for name, gradient in gradients.items():
        value = outputs.get(name)
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            raise TrainingError(
                f"microbatch {microbatch} got a gradient for {name!r}, "
                "which is no differentiable output of this stage"
            )
        if value.shape != gradient.shape:
            raise TrainingError(
                f"microbatch {microbatch} got a gradient of shape {tuple(gradient.shape)} for "
                f"{name!r}, expected {tuple(value.shape)}"
            )
        roots.append(value)
        starts.append(copier.to_device(gradient))
    return roots, starts
