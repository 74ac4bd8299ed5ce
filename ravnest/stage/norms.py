"""Norms of gradients: of one stage's, joined over stages, and clipping by them.

What is computed is `torch.nn.utils.clip_grad_norm_`'s, so that stages which join their norms clip
as one process does. Norms are joined as norms, not as sums of powers, which could overflow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping

import torch

from ravnest.errors import TrainingError

Parameters = Mapping[str, torch.nn.Parameter]


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


def gradient_norm(parameters: Parameters, norm_type: float) -> float:
    """The norm of the gradients of these parameters as one vector; the device is waited for.

    In bfloat16 the norm of each gradient is rounded to it, as torch does, so that one process is
    repeated; in float16, whose largest value a norm soon exceeds, it is float32.

    Args:
        parameters: by name; those without a gradient count for nothing.
        norm_type: 2 for the Euclidean norm, `inf` for the largest absolute value; any above 0.
    """
    whole: list[torch.Tensor] = []
    half: list[torch.Tensor] = []
    for gradient in _gradients(parameters).values():
        if gradient.numel():
            (half if gradient.dtype.itemsize < 4 else whole).append(gradient)
    norms = [torch.nn.utils.get_total_norm(whole, norm_type)] if whole else []
    norms += [
        torch.linalg.vector_norm(each, norm_type, dtype=_norm_dtype([each])).float()
        for each in half
    ]
    return joined(torch.stack(norms).tolist() if norms else (), norm_type)


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


def clip(parameters: Parameters, norm: float, max_norm: float) -> None:
    """Scales the gradients so that a norm above `max_norm` becomes `max_norm`.

    Args:
        norm: of all gradients of the model; `parameters` may be some of its.
    """
    gradients = list(_gradients(parameters).values())
    total = torch.tensor(norm, dtype=_norm_dtype(gradients))
    torch.nn.utils.clip_grads_with_norm_(parameters.values(), max_norm, total)


def multiply(parameters: Parameters, factor: float) -> None:
    """Multiplies the gradients of these parameters."""
    for each in parameters.values():
        if each.grad is not None:
            each.grad.mul_(factor)


def _norm_dtype(gradients: Iterable[torch.Tensor]) -> torch.dtype:
    dtypes = {each.dtype for each in gradients} or {torch.float32}
    found = functools.reduce(torch.promote_types, dtypes)
    return torch.float32 if found is torch.float16 else found


def _gradients(parameters: Parameters) -> dict[str, torch.Tensor]:
    """Dense gradients as they are, of sparse ones their values, by name."""
    return {
        name: each.grad.coalesce().values() if each.grad.is_sparse else each.grad
        for name, each in parameters.items()
        if each.grad is not None
    }
