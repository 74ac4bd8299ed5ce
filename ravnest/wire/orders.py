"""In which order a tensor's dimensions lie in memory, so that it lies so on the other side.

Kernels choose by it (`channels_last`), and their sums then differ in the last bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from ravnest.errors import ProtocolError

Order = tuple[int, ...]
"""Dimensions from the farthest strides to the nearest; empty for the usual order."""


def order_of(values: torch.Tensor) -> Order:
    """How the tensor lies, if it fills its memory without gaps; else empty."""
    strides = values.stride()
    if all(before >= after for before, after in itertools.pairwise(strides)):
        return ()
    # Of equal strides that of a dimension with one entry says nothing.
    dimensions = range(values.dim())
    order = tuple(sorted(dimensions, key=lambda each: (-strides[each], values.shape[each] == 1)))
    return order if values.permute(order).is_contiguous() else ()


def checked_order(order: Sequence[int], rank: int, name: str) -> Order:
    """What a peer says of a tensor's order; ProtocolError when it is none."""
    if order and sorted(order) != list(range(rank)):
        raise ProtocolError(
            f"tensor {name!r} has its dimensions in order {list(order)[:16]}, expected each of "
            f"{rank} once"
        )
    return tuple(order)


def laid_out(flat: torch.Tensor, shape: Sequence[int], order: Order) -> torch.Tensor:
    """A view with that shape of values that lie in that order."""
    if not order:
        return flat.view(tuple(shape))
    places = sorted(range(len(order)), key=order.__getitem__)
    return flat.view([shape[each] for each in order]).permute(places)
