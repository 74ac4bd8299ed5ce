"""Autocast regions: each operator knows the regions it stands in, so that a cut may tear none.

What torch.autocast does depends on the operator alone, but for one thing: it casts a parameter once
per outermost region and adds up the gradients of all uses in the low precision. A parameter is used
on one stage only, so its uses share a cast there as well. What a stage receives is a leaf of
autograd, which it is not in the whole model; `ProgramBuilder` therefore passes it on as a view,
which is never cached. The exporter does not tell a region with `cache_enabled=False` from one
without; it is taken to be True, torch's default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import fx

AUTOCAST_DTYPES = (torch.bfloat16, torch.float16)
MAX_AUTOCASTS = 16


@dataclass(frozen=True, slots=True)
class Autocast:
    """A region of the model's code.

    Attributes:
        number: tells it from other regions of the same graph.
        dtype: what it computes in, None for a disabled one.
    """

    number: int
    dtype: torch.dtype | None


Autocasts: TypeAlias = tuple[Autocast, ...]
"""The regions an operator stands in, outermost first."""


def autocasts_of(node: fx.Node) -> Autocasts:
    """The regions of a captured node."""
    found: Autocasts = node.meta.get("autocasts", ())
    return found


def _autocast(device_type: str, dtype: torch.dtype | None) -> torch.autocast:
    enabled = dtype is not None
    return torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=True)


@contextmanager
def within(device_type: str, autocasts: Autocasts) -> Iterator[None]:
    """All regions of one operator."""
    with Regions(device_type) as regions:
        for each in autocasts:
            regions.enter(each.dtype)
        yield


class Regions:
    """The regions that a running program is in; closing it leaves them, also after an error."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._entered: list[torch.autocast] = []

    def enter(self, dtype: torch.dtype | None) -> None:
        """Enters one more region; a disabled one when `dtype` is None."""
        region = _autocast(self._device_type, dtype)
        region.__enter__()  # type: ignore[no-untyped-call]
        self._entered.append(region)

    def leave(self) -> None:
        """Leaves the region entered last."""
        self._entered.pop().__exit__(None, None, None)

    def __enter__(self) -> Regions:
        return self

    def __exit__(self, *_: object) -> None:
        while self._entered:
            self.leave()


def device_type(values: Iterable[Any]) -> str:
    """Where the tensors among some values are; `cpu` when there is none."""
    return next((value.device.type for value in values if isinstance(value, torch.Tensor)), "cpu")


def shared_depth(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many outermost regions two operators have in common."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
