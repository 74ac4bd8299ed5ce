"""Ends of pipelines, many at a time, and the sets of nodes that are in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ravnest.planning.inputs.table import Bools, Floats, Ints

Sets: TypeAlias = NDArray[np.uint64]
"""Sets of nodes, 64 to a word: [row, word]."""

_WORD = 64


@dataclass(frozen=True, slots=True)
class Suffixes:
    """Ends of pipelines: first boundary, price, L, the largest E, nodes from the first on; what
    price * step their clusters have at least, and which nodes that count they have."""

    boundary: Ints
    price: Floats
    loop: Floats
    excess: Floats
    nodes: Ints
    product: Floats
    counted: Sets

    def __len__(self) -> int:
        return len(self.boundary)

    def take(self, kept: Bools | Ints | slice) -> Suffixes:
        """Some of them."""
        return Suffixes(
            self.boundary[kept],
            self.price[kept],
            self.loop[kept],
            self.excess[kept],
            self.nodes[kept],
            self.product[kept],
            self.counted[kept],
        )

    @classmethod
    def joined(cls, parts: Sequence[Suffixes]) -> Suffixes:
        """All of several."""
        return cls(
            np.concatenate([each.boundary for each in parts]),
            np.concatenate([each.price for each in parts]),
            np.concatenate([each.loop for each in parts]),
            np.concatenate([each.excess for each in parts]),
            np.concatenate([each.nodes for each in parts]),
            np.concatenate([each.product for each in parts]),
            np.concatenate([each.counted for each in parts]),
        )


def single_sets(counted: Bools) -> Sets:
    """By node the set of it alone, or the empty one where it does not count."""
    number = len(counted)
    bits = np.zeros((number, -(-number // _WORD) * _WORD), dtype=np.uint8)
    bits[np.arange(number), np.arange(number)] = counted
    return np.packbits(bits, axis=1, bitorder="little").view("<u8").astype(np.uint64)


def members(sets: Sets, number: int) -> Bools:
    """Which nodes are in sets: [row, node]."""
    words = np.ascontiguousarray(sets).astype("<u8").view(np.uint8)
    return np.unpackbits(words, axis=1, count=number, bitorder="little").astype(np.bool_)
