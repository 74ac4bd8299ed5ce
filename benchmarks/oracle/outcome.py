"""What training leaves behind, and how far two of it are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.zoo.comparing import difference

QUANTITIES = ("losses", "gradients", "weights", "buffers")


@dataclass
class Outcome:
    """Of one training.

    Attributes:
        losses: by step, the sum over the step's microbatches.
        gradients: of the last step, as the optimizer saw them, by name.
        weights, buffers: after the last step, by name.
        num_clipped: steps whose gradients were scaled.
        max_norm: what they were clipped to.
    """

    losses: list[float] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    num_clipped: int = 0
    max_norm: float | None = None


def differences(actual: Outcome, expected: Outcome, *, relative: bool) -> dict[str, float]:
    """Per quantity the largest difference.

    Args:
        relative: to each tensor's largest value, as in the zoo; else absolute up to a value of 1,
            and relative to the tensor's largest above.
    """
    apart = {}
    for quantity in QUANTITIES:
        ours, theirs = getattr(actual, quantity), getattr(expected, quantity)
        if quantity == "losses":
            ours, theirs = ({"losses": torch.tensor(each).double()} for each in (ours, theirs))
        if ours.keys() != theirs.keys():
            apart[quantity] = math.inf
        elif relative:
            apart[quantity] = difference(dict(sorted(ours.items())), dict(sorted(theirs.items())))
        else:
            apart[quantity] = _largest(ours, theirs)
    return apart


def _largest(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> float:
    worst = 0.0
    for name, expected in theirs.items():
        actual = ours[name]
        if actual.shape != expected.shape or actual.dtype != expected.dtype:
            return math.inf
        if expected.numel() and not actual.equal(expected):
            apart = (actual.double() - expected.double()).abs().max().item()
            scale = max(1.0, expected.double().abs().max().item())
            worst = max(worst, apart / scale if math.isfinite(apart) else math.inf)
    return worst


class WithoutDropout(TorchDispatchMode):
    """Every mask of dropout keeps everything, so that one process and many draw the same.

    A mask is drawn with the probability to keep and then divided by it: filled with that
    probability instead, it is exactly 1. Holds for the thread that entered it.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Replaces drawing; all else is as it was."""
        if func is torch.ops.aten.bernoulli_.float:
            return args[0].fill_(args[1] if len(args) > 1 else 0.5)
        return func(*args, **(kwargs or {}))
