"""Clusters of three in large pools: the largest rate over price of any, as the bound sees it.

Given the cuts and the class of the middle node's link, root and leaf depend on each other only in
that they are not the same node. So of either only those nodes matter of which fewer than three
others have less price, seconds and E. What is left are few enough triples to look at each. A link
takes bytes over the smaller of the end's own rate and the highest of the middle's class, so seconds
are at most what they are in truth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ravnest.planning.prices import Pricing
from ravnest.planning.table import Floats, Ints

_LEVELS = 32


class _Ends(NamedTuple):
    """Candidates for one end of a cluster: nodes, prices, seconds with their link, and E."""

    nodes: Ints
    price: Floats
    seconds: Floats
    excess: Floats


class Triples:
    """All triples of a pool, for prices in the order of `pricing`."""

    def __init__(self, pricing: Pricing, prices: Floats) -> None:
        self._p, self._prices = pricing, prices
        self._by_price = np.argsort(prices, kind="stable")
        self._worst = 0.0
        self._nodes: tuple[int, int, int] = (0, 0, 0)

    def worst(self, known: float) -> tuple[float, tuple[int, int, int]]:
        """The largest ratio above what is known, or that, and the triple that has it."""
        self._worst = known
        pace, size = self._p.pace, self._p.pace.size
        ends = [*self._p.offsets[1:].tolist(), len(self._prices)]
        for low, high in zip(self._p.offsets.tolist(), ends, strict=True):
            rate = float(self._p.traits.rate[low:high].max())
            roots = [self._ends(0, cut, 2, cut, rate) for cut in range(size - 1)]
            leaves = [self._ends(cut, size - 1, 0, cut, rate) for cut in range(size - 1)]
            for first in range(1, size - 1):
                for second in range(first + (pace.most_stages < size), size - 1):
                    if len(roots[first].nodes) and len(leaves[second].nodes):
                        self._look(roots[first], leaves[second], first, second, low, high)
        return self._worst, self._nodes

    def _ends(self, start: int, end: int, kind: int, cut: int, rate: float) -> _Ends:
        """Roots or leaves whose link, at a cut, is to a node of at most some rate."""
        p = self._p
        pair = p.pair(start, end)
        if pair < 0 or cut == 0:
            none = np.zeros(0)
            return _Ends(np.zeros(0, dtype=np.int64), none, none, none)
        order = self._by_price[p.fits[kind][pair][self._by_price]]
        variant = p.variant(kind)
        num_bytes = float(p.pace.activation_bytes[cut] + p.pace.gradient_bytes[cut])
        seconds = p.seconds[variant][pair, order] + num_bytes / np.minimum(
            p.traits.rate[order], rate
        )
        excess = p.excess[variant][pair, order]
        kept = _candidates(seconds, excess)
        return _Ends(order[kept], self._prices[order[kept]], seconds[kept], excess[kept])

    def _look(self, root: _Ends, leaf: _Ends, first: int, second: int, low: int, high: int) -> None:
        """All triples with these cuts and a middle of one class."""
        p, pace = self._p, self._p.pace
        pair = p.pair(first, second)
        if pair < 0:
            return
        middle = low + np.flatnonzero(p.fits[1][pair][low:high])
        variant = p.variant(1)
        seconds, excess = p.seconds[variant][pair, middle], p.excess[variant][pair, middle]
        least = self._prices[middle] + root.price.min() + leaf.price.min()
        loop = seconds + root.seconds.min() + leaf.seconds.min()
        largest = np.maximum(excess, pace.periods * loop / 3)
        kept = least * (pace.is_flushed * loop + largest) * self._worst < pace.frequency
        if not kept.any():
            return
        middle, seconds, excess = middle[kept], seconds[kept], excess[kept]
        tail = seconds[:, None] - 2 * p.traits.latency_s[middle][:, None] + leaf.seconds
        after = np.maximum(np.maximum(excess[:, None], leaf.excess), pace.periods * tail / 2)
        loops = root.seconds[:, None, None] + (seconds[:, None] + leaf.seconds)
        steps = np.maximum(np.maximum(root.excess[:, None, None], after), pace.periods / 3 * loops)
        if pace.is_flushed:
            steps += loops
        prices = root.price[:, None, None] + (self._prices[middle][:, None] + leaf.price)
        ratios = pace.frequency / (steps * prices)
        ratios[root.nodes[:, None] == middle] = 0.0  # a node is in a cluster once
        ratios[:, middle[:, None] == leaf.nodes] = 0.0
        ratios[np.broadcast_to((root.nodes[:, None] == leaf.nodes)[:, None], ratios.shape)] = 0.0
        where = np.unravel_index(int(ratios.argmax()), ratios.shape)
        if ratios[where] > self._worst:
            self._worst = float(ratios[where])
            i, j, k = (int(each) for each in where)
            self._nodes = (int(root.nodes[i]), int(middle[j]), int(leaf.nodes[k]))


def _candidates(seconds: Floats, excess: Floats) -> Ints:
    """Nodes, by ascending price, than which at most two before have less of both; maybe more."""
    left = np.arange(len(seconds))
    found = []
    for _ in range(3):
        layer = _undominated(seconds[left], excess[left])
        found.append(left[layer])
        left = np.delete(left, layer)
    return np.sort(np.concatenate(found))


def _undominated(seconds: Floats, excess: Floats) -> Ints:
    """Those that none before has less seconds and E than; maybe more."""
    if len(seconds) == 0:
        return np.zeros(0, dtype=np.int64)
    levels = np.quantile(excess, np.linspace(0.0, 1.0, _LEVELS))
    under = np.where(excess <= levels[:, None], seconds, np.inf)
    least = np.minimum.accumulate(under, axis=1)
    own = np.searchsorted(levels, excess, side="right") - 1  # the last level up to its own E
    before = least[own[1:], np.arange(len(seconds) - 1)]
    kept = np.concatenate(([True], seconds[1:] < before))
    return np.flatnonzero(kept)
