"""Which of many partial solutions no other one makes superfluous.

One does so to another of the same group when it has none of some values larger, and no element that
the other one lacks. Only the first of each group, in an order that the caller thinks promising, are
held against the others: leaving too many takes time and is never wrong.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from ravnest.planning.inputs.table import Bools, Floats, Ints

_AT_ONCE = 64
_PASSES = 6
_EQUAL = 1.0 - 1e-12


def undominated(values: Floats, elements: NDArray[np.uint64], group: Ints, order: Ints) -> Bools:
    """Which to keep.

    Args:
        values: less is better: [value, row].
        elements: sets of them, a bit each: [row, word].
        group: of each row.
        order: rows by group, the promising ones of each first.
    """
    found = np.zeros(len(order), dtype=np.bool_)
    edges = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1)).tolist()
    for low, high in itertools.pairwise(edges):
        rows = order[low:high]
        found[rows[_kept(values[:, rows], elements[rows])]] = True
    return found


def _kept(values: Floats, elements: NDArray[np.uint64]) -> Ints:
    """Indices of those to keep of one group, in their order."""
    left = np.arange(values.shape[1])
    for done in range(0, _PASSES * _AT_ONCE, _AT_ONCE):
        first, rest = left[done : done + _AT_ONCE], left[done:]
        if not len(first):
            break
        is_worse = rest[:, None] > first
        for each in values:
            is_worse &= each[rest, None] >= each[first] * _EQUAL
        for word in elements.T:
            is_worse &= (word[first] & ~word[rest, None]) == 0
        left = np.concatenate((left[:done], rest[~is_worse.any(axis=1)]))
    return left
