"""Clusters of three in large pools: the largest rate over price of any, as the bound sees it.

Given the cuts and the class of the middle node's link, root and leaf depend on each other only in
that they are not the same node. So of either only those nodes matter of which fewer than three
others have less price, seconds and E. What is left are few enough triples to look at each. A link
takes bytes over the smaller of the end's own rate and the highest of the middle's class, so seconds
are at most what they are in truth.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ravnest.planning.inputs.table import Bools, Floats, Ints
from ravnest.planning.pools.prices import Pricing

_LEVELS = 32
_NEAR = 0.98
_FEW = 40  # ends up to which it costs more to find out which of them matter
_TINY = 1e-300
_NONE: Ints = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Candidates for a place in a cluster: prices, seconds with the links to it, and E."""

    nodes: Ints
    price: Floats
    seconds: Floats
    excess: Floats

    def take(self, kept: Bools) -> _Nodes:
        """Some of them."""
        return _Nodes(self.nodes[kept], self.price[kept], self.seconds[kept], self.excess[kept])


_Case: TypeAlias = tuple[float, int, int, int, int]
"""What no cluster is worth more than; both cuts; where the nodes of the middle's class are."""


class Triples:
    """All triples of a pool, for prices in the order of `pricing`."""

    def __init__(self, pricing: Pricing, prices: Floats) -> None:
        self._p, self._prices = pricing, prices
        self._by_price = np.argsort(prices, kind="stable")
        self._worst, self._near = 0.0, _NEAR
        self.near: dict[tuple[int, ...], float] = {}

    def worst(self, known: float, *, near: float = _NEAR) -> float:
        """The largest ratio of a triple, or what is known where that is more.

        `near` then has, from root to leaf, one for some cuts each that come near it, with rates.

        Args:
            near: share of the largest ratio from which on.
        """
        self._near = near
        self._worst = known
        # The most promising first: what is found there lets the others be passed over.
        ends = functools.cache(self._ends)  # few of them are needed
        last = self._p.pace.size - 1
        for ratio, first, second, low, high in sorted(self._cases(), key=lambda case: -case[0]):
            if ratio <= self._floor:
                break
            rate = float(self._p.traits.rate[low:high].max())
            root, leaf = ends(0, first, 2, first, rate), ends(second, last, 0, second, rate)
            self._look(root, leaf, self._middles(first, second, low, high))
        return self._worst

    @property
    def _floor(self) -> float:
        """Smaller ratios are of no interest."""
        return self._near * self._worst

    def _cases(self) -> Iterator[_Case]:
        """All cuts and classes of the middle whose clusters may be worth enough."""
        p, last = self._p, self._p.pace.size - 1
        skips = p.pace.most_stages <= last  # else both cuts may lie in one slice of the graph
        first, second = np.triu_indices(last, int(skips))
        inside = (first > 0) & (p.index_of[first, second] >= 0)
        first, second = first[inside], second[inside]
        pairs, variant = p.index_of[first, second], p.variant(1)
        ends = [*p.offsets[1:].tolist(), len(self._prices)]
        for low, high in zip(p.offsets.tolist(), ends, strict=True):
            rate = float(p.traits.rate[low:high].max())
            least = self._least(0, rate)[:, first] + self._least(last, rate)[:, second]
            used = np.flatnonzero(np.isfinite(least[0]))
            nodes = slice(low, high)
            ratios = self._ratio(
                least[0, used, None] + self._prices[nodes],
                least[1, used, None] + p.seconds[variant][pairs[used], nodes],
                p.excess[variant][pairs[used], nodes],
            )
            ratios[~p.fits[1][pairs[used], nodes]] = 0.0
            most = ratios.max(axis=1)
            for at in np.flatnonzero(most > self._floor).tolist():
                one, other = int(first[used[at]]), int(second[used[at]])
                yield float(most[at]), one, other, low, high

    def _least(self, end: int, rate: float) -> Floats:
        """Price and seconds that no root or leaf has less of: [2, cut]; infinite where none fits.

        Args:
            end: of the graph, which says whether it is roots or leaves.
            rate: of their link, at most.
        """
        p, found = self._p, np.full((2, self._p.pace.size), np.inf)
        cuts = np.arange(1, p.pace.size - 1)
        pairs = p.index_of[cuts, end] if end else p.index_of[0, cuts]
        cuts, pairs = cuts[pairs >= 0], pairs[pairs >= 0]
        kind = 0 if end else 2
        fits = p.fits[kind][pairs]
        num_bytes = (p.pace.activation_bytes + p.pace.gradient_bytes)[cuts]
        links = num_bytes[:, None] / np.minimum(p.traits.rate, rate)
        seconds = p.seconds[p.variant(kind)][pairs] + links
        found[0, cuts] = np.where(fits, self._prices, np.inf).min(axis=1)
        found[1, cuts] = np.where(fits, seconds, np.inf).min(axis=1)
        return found

    def _ratio(self, price: Floats, loop: Floats, excess: Floats) -> Floats:
        """Rate over price of clusters of three by their L_0 and what their E is no less than."""
        pace = self._p.pace
        step = pace.is_flushed * loop + np.maximum(excess, pace.periods / 3 * loop)
        found: Floats = pace.frequency / np.maximum(price * step, _TINY)
        return found

    def _middles(self, start: int, end: int, low: int, high: int) -> _Nodes:
        """Nodes of a class that hold a stage between two cuts."""
        p = self._p
        pair = p.pair(start, end)
        nodes = low + np.flatnonzero(p.fits[1][pair][low:high]) if pair >= 0 else _NONE
        variant = p.variant(1)
        seconds, excess = p.seconds[variant][pair, nodes], p.excess[variant][pair, nodes]
        return _Nodes(nodes, self._prices[nodes], seconds, excess)

    def _ends(self, start: int, end: int, kind: int, cut: int, rate: float) -> _Nodes:
        """Roots or leaves whose link, at a cut, is to a node of at most some rate."""
        p = self._p
        pair = p.pair(start, end)
        if pair < 0 or cut == 0:
            return _Nodes(_NONE, *[np.zeros(0)] * 3)
        order = self._by_price[p.fits[kind][pair][self._by_price]]
        variant = p.variant(kind)
        num_bytes = float(p.pace.activation_bytes[cut] + p.pace.gradient_bytes[cut])
        seconds = p.seconds[variant][pair, order] + num_bytes / np.minimum(
            p.traits.rate[order], rate
        )
        excess = p.excess[variant][pair, order]
        kept = _candidates(seconds, excess) if len(order) > _FEW else np.arange(len(order))
        return _Nodes(order[kept], self._prices[order[kept]], seconds[kept], excess[kept])

    def _look(self, root: _Nodes, leaf: _Nodes, middle: _Nodes) -> None:
        """All triples with these cuts and a middle of one class."""
        p, pace = self._p, self._p.pace
        for _ in range(2):  # what is left of one makes the others fewer
            root = root.take(self._kept(root, middle, leaf))
            leaf = leaf.take(self._kept(leaf, middle, root))
            middle = middle.take(self._kept(middle, root, leaf))
            if not (len(root.nodes) and len(leaf.nodes) and len(middle.nodes)):
                return
        # Pairs of middle and leaf, then each with every root.
        j, k = np.nonzero(middle.nodes[:, None] != leaf.nodes)
        seconds, price = middle.seconds[j] + leaf.seconds[k], middle.price[j] + leaf.price[k]
        tail = seconds - 2 * p.traits.latency_s[middle.nodes[j]]
        after = np.maximum(middle.excess[j], leaf.excess[k])
        after = np.maximum(after, pace.periods / 2 * tail)
        least = price + root.price.min(), seconds + root.seconds.min()
        kept = self._ratio(*least, after) > self._floor
        j, k, seconds, price, after = j[kept], k[kept], seconds[kept], price[kept], after[kept]
        ratios = self._ratio(
            root.price[:, None] + price,
            root.seconds[:, None] + seconds,
            np.maximum(root.excess[:, None], after),
        )
        # A node is in a cluster once.
        ratios[root.nodes[:, None] == middle.nodes[j]] = 0.0
        ratios[root.nodes[:, None] == leaf.nodes[k]] = 0.0
        if ratios.size and float(ratios.max()) > self._floor:
            i, at = np.unravel_index(int(ratios.argmax()), ratios.shape)
            ratio, whole = float(ratios[i, at]), float(root.price[i] + price[at])
            nodes = (int(root.nodes[i]), int(middle.nodes[j[at]]), int(leaf.nodes[k[at]]))
            self.near[nodes] = max(ratio * whole, self.near.get(nodes, 0.0))
            self._worst = max(self._worst, ratio)

    def _kept(self, one: _Nodes, other: _Nodes, third: _Nodes) -> Bools:
        """Which of some nodes could be in a triple of a larger ratio than is known."""
        if not (len(other.nodes) and len(third.nodes)):
            return np.zeros(len(one.nodes), dtype=np.bool_)
        price = one.price + (other.price.min() + third.price.min())
        loop = one.seconds + (other.seconds.min() + third.seconds.min())
        kept: Bools = self._ratio(price, loop, one.excess) > self._floor
        return kept


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
