"""Nodes that are like others, parts of a pool, and prices of many nodes told by those of a few.

A price over speed changes little between nodes that are nearly alike. So the prices of a few nodes
spread over the pool, each node's being a mean of those of the nearest of them, come near the best
prices soon; those of all nodes by themselves take far more rounds (a restriction of the dual, which
keeps every bound true).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.search.pace import Traits

_NEAREST = 4
_AT_ONCE = 200  # nodes that are held against all others together
_SOFT = 0.05
_MEMORY, _RATE, _LATENCY = 4.0, 1 / 1.5, 1 / 3
"""How much logarithms count, that of speed being 1: memory decides what fits."""


def nearest(traits: Traits, others: Ints, number: int) -> tuple[Ints, Floats]:
    """By node, the indices among some others of those most like it, and how far they are."""
    log = np.log
    places = np.stack(
        (
            _MEMORY * log(np.maximum(traits.memory, 1.0)) + 100.0 * traits.accelerated,
            log(traits.flops),
            _RATE * log(np.maximum(traits.rate, 1e-9)),
            _LATENCY * log(np.maximum(traits.latency_s, 1e-4)),
        ),
        axis=1,
    )
    found, far = [], []
    for low in range(0, len(places), _AT_ONCE):
        gaps = places[low : low + _AT_ONCE, None] - places[others]
        distance = np.sqrt((gaps**2).sum(axis=2))
        index = np.argsort(distance, axis=1, kind="stable")[:, :number]
        found.append(index)
        far.append(np.take_along_axis(distance, index, axis=1))
    return np.concatenate(found), np.concatenate(far)


def spread(traits: Traits, worth: Floats, number: int) -> tuple[sparse.csr_matrix, Ints]:
    """Prices of all nodes by those of some: the matrix, of [node, chosen], and the chosen ones.

    Args:
        worth: of the nodes; prices of the chosen ones are over it.
        number: of those that are chosen, all for more than there are.
    """
    if number >= len(traits):
        return sparse.csr_matrix(sparse.diags(worth)), np.arange(len(traits))
    order = _sorted(traits)
    chosen = np.sort(order[np.linspace(0, len(order) - 1, number).round().astype(np.int64)])
    index, far = nearest(traits, chosen, _NEAREST)
    share = 1.0 / (far + _SOFT) ** 2
    share *= (worth / share.sum(axis=1))[:, None]
    rows = np.repeat(np.arange(len(traits)), index.shape[1])
    shape = len(traits), number
    return sparse.csr_matrix((share.ravel(), (rows, index.ravel())), shape=shape), chosen


def dealt(traits: Traits, number: int) -> list[Ints]:
    """All nodes in so many parts, each much like the whole."""
    order = _sorted(traits)
    return [np.sort(order[first::number]) for first in range(number)]


def _sorted(traits: Traits) -> Ints:
    return np.lexsort((traits.rate, traits.flops, traits.memory, traits.accelerated))
