"""Norms of gradients: of one stage's, joined over stages, and clipping by them.

What is computed is `torch.nn.utils.clip_grad_norm_`'s, to the bit where the norms of all gradients
are known one by one. Parts that are known as one are joined as norms, not as sums of powers, which
could overflow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from ravnest.errors import TrainingError

Parameters = Mapping[str, torch.nn.Parameter]


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """Norms of gradients, one by one.

    Attributes:
        by_position: of each gradient, by where its parameter stands in the model.
        dtype: of the norm of them all.
    """

    by_position: Mapping[int, float]
    dtype: torch.dtype

    def and_those_of(self, other: GradientNorms) -> GradientNorms:
        """The norms of two stages together."""
        dtype = torch.promote_types(self.dtype, other.dtype)
        return GradientNorms({**self.by_position, **other.by_position}, dtype)

    def total(self, norm_type: float) -> float:
        """The norm of all gradients as one vector, rounded as torch rounds it; 0 for none.

        Taken in the model's order, it has the bits of `torch.nn.utils.get_total_norm` in one
        process. Where that overflows and no gradient has, it is what does not.
        """
        norms = [self.by_position[position] for position in sorted(self.by_position)]
        if not norms:
            return 0.0
        found = float(torch.linalg.vector_norm(torch.tensor(norms, dtype=self.dtype), norm_type))
        return found if math.isfinite(found) else joined(norms, norm_type)


def joined(norms: Iterable[float], norm_type: float) -> float:
    """The norm of a vector whose parts have these norms; 0 without parts, NaN if any is."""
    parts = list(norms)
    if any(math.isnan(part) for part in parts):
        return math.nan
    largest = max(parts, default=0.0)
    if largest == 0.0 or math.isinf(largest) or math.isinf(norm_type):
        return largest
    total = math.fsum((part / largest) ** norm_type for part in parts)
    return float(largest * total ** (1.0 / norm_type))


def gradient_norms(
    parameters: Parameters, positions: Mapping[str, int], norm_type: float
) -> GradientNorms:
    """The norms of the gradients of these parameters; the device is waited for, once.

    In bfloat16 the norm of each gradient is rounded to it, as torch does, so that one process is
    repeated; in float16, whose largest value a norm soon exceeds, it is float32.

    Args:
        parameters: by name; those without a gradient count for nothing.
        positions: of the parameters in the whole model, by name.
        norm_type: 2 for the Euclidean norm, `inf` for the largest absolute value; any above 0.
    """
    gradients = {n: each for n, each in _gradients(parameters).items() if each.numel()}
    found = [
        torch.linalg.vector_norm(each, norm_type, dtype=_norm_dtype([each])).double()
        for each in gradients.values()
    ]
    norms = torch.stack(found).tolist() if found else []
    by_position = {positions[name]: norm for name, norm in zip(gradients, norms, strict=True)}
    return GradientNorms(by_position, _norm_dtype(gradients.values()).to_real())


def check_finite(parameters: Parameters, norm: float, *, where: str) -> None:
    """Raises TrainingError, naming the parameters, when the norm of their gradients is not finite.

    Args:
        where: which stage and step, for the message.
    """
    if math.isfinite(norm):
        return
    gradients = _gradients(parameters)
    faulty = [name for name, each in gradients.items() if not each.isfinite().all()]
    named = ", ".join(faulty[:3]) + (", ..." if len(faulty) > 3 else "")
    raise TrainingError(
        f"the norm of the gradients of {where} is {norm}, so they cannot be clipped; "
        f"{len(faulty)} of {len(gradients)} have values that are not finite: {named or 'none'}",
        hint="lower the learning rate, or look for the operator that makes them with "
        "torch.autograd.detect_anomaly() around the model in one process",
    )


def clip(parameters: Parameters, norm: float, max_norm: float, dtype: torch.dtype) -> None:
    """Scales the gradients so that a norm above `max_norm` becomes `max_norm`.

    Args:
        norm: of all gradients of the model; `parameters` may be some of its.
        dtype: to compute the factor in.
    """
    total = torch.tensor(norm, dtype=dtype)
    torch.nn.utils.clip_grads_with_norm_(parameters.values(), max_norm, total)


def multiply(parameters: Parameters, factor: float) -> None:
    """Multiplies the gradients of these parameters."""
    for each in parameters.values():
        if each.grad is not None:
            each.grad.mul_(factor)


def _norm_dtype(gradients: Iterable[torch.Tensor]) -> torch.dtype:
    """Of their norm: bfloat16 for bfloat16, float32 for float16, else as they are."""
    return functools.reduce(torch.promote_types, (each.dtype for each in gradients), torch.bfloat16)


def _gradients(parameters: Parameters) -> dict[str, torch.Tensor]:
    """Dense gradients as they are, of sparse ones their values, by name."""
    return {
        name: each.grad.coalesce().values() if each.grad.is_sparse else each.grad
        for name, each in parameters.items()
        if each.grad is not None
    }
