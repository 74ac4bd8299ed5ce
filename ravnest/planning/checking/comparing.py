"""Compares what a model and its stages computed, and finds the tensor that is furthest off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Stages run the operators of the model, so that most models agree to the bit; sums that autograd
# makes in another order (a value used on several stages) do not. An error that matters is larger.
_TOLERANCES = {torch.float64: 1e-8, torch.complex128: 1e-8, torch.float32: 1e-4}
_TOLERANCES |= {torch.complex64: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
_COARSEST = 0.25

# A tensor whose true values are zero (the gradient of a bias before a normalization) is rounding
# noise; so it is measured by at least this share of the largest among its kind.
_SMALLEST_SCALE = 0.01


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that is further off than rounding explains.

    Attributes:
        what: kind and name, for people.
        largest: largest absolute difference; inf where only one is finite or is there at all.
        allowed: what was tolerated.
    """

    what: str
    largest: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What comparing several tensors found.

    Attributes:
        differences: those too far off.
        num_tensors: how many were compared.
        largest_share: largest difference, relative to what was tolerated.
    """

    differences: tuple[Difference, ...]
    num_tensors: int
    largest_share: float


def tolerance_of(dtypes: Iterable[torch.dtype]) -> float:
    """Relative tolerance for a model that computes in these dtypes: that of the coarsest."""
    floating = [dtype for dtype in dtypes if dtype.is_floating_point or dtype.is_complex]
    return max((_TOLERANCES.get(dtype, _COARSEST) for dtype in floating), default=0.0)


def compare(
    kind: str, expected: Mapping[str, Any], actual: Mapping[str, Any], tolerance: float
) -> Comparison:
    """Compares tensors (or plain values) of one kind by name.

    Args:
        kind: such as "gradient", for the message.
        expected: of the original model; None counts as zeros, which a missing gradient is.
        actual: of the stages, under the same names.
        tolerance: of floating values, relative to the largest value of the tensor. Integers, bools
            and plain values must be equal.
    """
    scale = _SMALLEST_SCALE * max((_magnitude(value) for value in expected.values()), default=0.0)
    differences: list[Difference] = []
    share = 0.0
    for name, value in expected.items():
        allowed = tolerance * max(_magnitude(value), scale) if _is_floating(value) else 0.0
        if value is None:
            allowed = tolerance * scale
        largest = _largest_difference(value, actual.get(name))
        share = max(share, largest / allowed if allowed else math.inf * largest if largest else 0.0)
        if largest > allowed:
            differences.append(Difference(f"{kind} {name!r}" if name else kind, largest, allowed))
    return Comparison(tuple(differences), len(expected), share)


def worst(differences: Sequence[Difference]) -> Difference:
    """The one furthest beyond what is tolerated."""
    return max(differences, key=lambda each: each.largest / max(each.allowed, 1e-300))


def _largest_difference(expected: Any, actual: Any) -> float:
    """Largest absolute difference; inf for values that cannot be subtracted and are not equal."""
    if not isinstance(expected, torch.Tensor) and not isinstance(actual, torch.Tensor):
        return 0.0 if type(expected) is type(actual) and expected == actual else math.inf
    expected, actual = _dense(expected, actual), _dense(actual, expected)
    if expected is None or actual is None or expected.shape != actual.shape:
        return math.inf
    if expected.dtype != actual.dtype:
        return math.inf
    if torch.equal(expected, actual):
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    one, other = expected.to(wide), actual.to(wide)
    same = (one == other) | (one.isnan() & other.isnan())
    difference = (one - other).abs().masked_fill(same, 0.0).max()
    return math.inf if difference.isnan() else float(difference)


def _dense(value: Any, like: Any) -> torch.Tensor | None:
    """A dense tensor; zeros for one that is not there."""
    if value is None and isinstance(like, torch.Tensor):
        return torch.zeros_like(like.to_dense() if like.layout is not torch.strided else like)
    if not isinstance(value, torch.Tensor):
        return None
    tensor = value.detach()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _magnitude(value: Any) -> float:
    """Largest absolute finite value of a floating tensor, else 0."""
    if not _is_floating(value) or value.numel() == 0:
        return 0.0
    dense = value.detach()
    dense = dense if dense.layout is torch.strided else dense.to_dense()
    return float(torch.nan_to_num(dense.abs().float(), 0.0, 0.0, 0.0).max())
