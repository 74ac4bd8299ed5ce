"""How far two nested values are apart, and what the original model computes."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from benchmarks.zoo.chain import DRAW_SEED
from benchmarks.zoo.entry import Call, Entry
from benchmarks.zoo.exchange import projection_loss
from ravnest.plan.structure import flatten

_SMALL = (
    1e-3  # a tensor whose values are smaller than this share of the largest is measured by that
)


def difference(actual: Any, expected: Any) -> float:
    """Largest difference of two nested values, relative to each tensor's largest value.

    A tensor of values below a thousandth of the largest of all (the gradient of a bias before a
    normalization is nothing but rounding) is measured by that thousandth. Infinite when nesting,
    dtypes, shapes, integers or plain values differ.
    """
    ours, structure = flatten(actual)
    theirs, wanted = flatten(expected)
    if structure != wanted:
        return math.inf
    floating = [leaf for leaf in theirs if isinstance(leaf, torch.Tensor) and _is_floating(leaf)]
    largest = max((_largest(leaf) for leaf in floating), default=0.0)
    return max((_apart(a, b, largest) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _apart(one: Any, other: Any, largest: float) -> float:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return 0.0 if type(one) is type(other) and one == other else math.inf
    if one.dtype != other.dtype or one.shape != other.shape:
        return math.inf
    if one.equal(other):
        return 0.0
    if not _is_floating(other):
        return math.inf
    wide = torch.complex128 if other.is_complex() else torch.float64
    apart = (one.to(wide) - other.to(wide)).abs().max().item()
    scale = max(_largest(other), _SMALL * largest)
    return apart / scale if math.isfinite(apart) and scale > 0 else math.inf


def _is_floating(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _largest(tensor: torch.Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


def run_original(entry: Entry, call: Call) -> dict[str, Any]:
    """What `chain.run_chain` gives, of the untouched model in one process."""
    model = entry.model()
    evaluated = _evaluated(entry, call)
    args, kwargs = copy.deepcopy(call)
    torch.manual_seed(DRAW_SEED)
    output = model(*args, **kwargs)
    leaves = {str(index): leaf for index, leaf in enumerate(flatten(output)[0])}
    projection_loss(leaves).backward()
    named = sorted(model.named_parameters())
    persistent = model.state_dict().keys()
    return {
        "output": output,
        "eval output": evaluated,
        "gradients": {name: p.grad for name, p in named if p.grad is not None},
        "buffers": {name: b for name, b in sorted(model.named_buffers()) if name in persistent},
    }


def _evaluated(entry: Entry, call: Call) -> Any:
    model: nn.Module = entry.model().eval()
    args, kwargs = copy.deepcopy(call)
    torch.manual_seed(DRAW_SEED)  # a traced model has dropout in this mode, too
    with torch.no_grad():
        return model(*args, **kwargs)
