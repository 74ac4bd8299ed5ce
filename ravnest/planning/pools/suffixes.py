"""Every cluster that is worth more than a share of its price, built from the leaf.

Suffixes of pipelines are made longer by every node that they lack and every cut, and given up where
the least that the rest costs (`outlook`) lets no cluster be worth enough. Of suffixes of the same
nodes with the same first one, those stay of which none has less of both L and E. Where too many are
left, the least promising are given up, and what they could have been worth is the answer's
uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.table import Bools, Floats, Ints
from ravnest.planning.pools.costs import StageCosts
from ravnest.planning.pools.outlook import Outlook

_AT_ONCE = 2 * 10**6  # stages that are looked at together
_EQUAL = 1.0 - 1e-12
_HOPELESS = 1.3  # times what is enough: when that may have been given up, nothing is proven
_SLACK = 1.0 + 1e-9  # rounding of sums in another order proves nothing


@dataclass(frozen=True, slots=True)
class Worthy:
    """Clusters that are worth enough.

    Attributes:
        ratio: no cluster that was looked for has a larger rate over price.
        is_complete: none were given up that could be worth enough.
        clusters: nodes from root to leaf, by number of stages: [cluster, stage].
        rates: of these.
    """

    ratio: float
    is_complete: bool
    clusters: tuple[Ints, ...]
    rates: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class _Suffixes:
    """Ends of pipelines: first boundary, price, L, the largest E, nodes from the first on; and what
    price * step their clusters have at least."""

    boundary: Ints
    price: Floats
    loop: Floats
    excess: Floats
    nodes: Ints
    product: Floats

    def __len__(self) -> int:
        return len(self.boundary)

    def take(self, kept: Bools | Ints | slice) -> _Suffixes:
        """Some of them."""
        return _Suffixes(
            self.boundary[kept],
            self.price[kept],
            self.loop[kept],
            self.excess[kept],
            self.nodes[kept],
            self.product[kept],
        )

    @classmethod
    def joined(cls, parts: Sequence[_Suffixes]) -> _Suffixes:
        """All of several."""
        names = ("boundary", "price", "loop", "excess", "nodes", "product")
        return cls(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))


class SuffixSearch:
    """One search, for given prices.

    Args:
        prices: of the nodes, all above 0.
        enough: rate over price from which clusters are of interest.
        most_stages: clusters of more are not looked for.
        most_kept: suffixes of a length that are made longer.
    """

    def __init__(
        self,
        costs: StageCosts,
        prices: Floats,
        enough: float,
        most_stages: int,
        most_kept: int,
    ) -> None:
        self._costs, self._pace, self._prices = costs, costs.pace, prices
        self._most = min(most_stages, costs.most_stages)
        self._most_kept = most_kept
        self._limit = self._pace.frequency / enough
        self._given_up = np.inf  # the least product of those that were
        self._outlook = Outlook(costs, prices, self._limit, self._most)

    def run(self) -> Worthy:
        """Looks for them."""
        clusters: list[Ints] = []
        rates: list[Floats] = []
        best = self._pace.frequency / self._limit
        suffixes = self._leaves()
        while len(suffixes):
            is_whole = suffixes.boundary == 0
            whole = suffixes.take(is_whole)
            if len(whole):
                clusters.append(whole.nodes)
                rates.append(self._pace.frequency * whole.price / whole.product)
                best = max(best, float(self._pace.frequency / whole.product.min()))
            left = self._promising(suffixes.take(~is_whole))
            if left.nodes.shape[1] >= self._most or not len(left):
                break
            if self._given_up * _HOPELESS < self._limit:
                self._given_up = min(self._given_up, float(left.product.min()))
                break
            suffixes = self._longer(_undominated(left))
        given_up = self._pace.frequency / self._given_up
        return Worthy(max(best, given_up) * _SLACK, given_up <= best, (*clusters,), (*rates,))

    def _leaves(self) -> _Suffixes:
        costs, pace = self._costs, self._pace
        pair, node = np.nonzero(costs.fits(1))
        loop = costs.leaf[pair, node]
        excess = pace.periods * loop + costs.update[pair, node]
        found = (costs.start[pair], self._prices[node], loop, excess)
        return self._seen(*found, node[:, None])

    def _seen(
        self, boundary: Ints, price: Floats, loop: Floats, excess: Floats, nodes: Ints
    ) -> _Suffixes:
        """Those of some suffixes that clusters worth enough can have."""
        product = price * (self._pace.is_flushed * loop + excess)
        kept = product < self._limit
        boundary, nodes = boundary[kept], nodes[kept]
        price, loop, excess, product = (each[kept] for each in (price, loop, excess, product))
        inner = np.flatnonzero(boundary)
        link = self._costs.half_link(boundary[inner], nodes[inner, 0])
        product[inner] = self._outlook.products(
            nodes.shape[1], boundary[inner], price[inner], loop[inner] + link, excess[inner]
        )
        found = _Suffixes(boundary, price, loop, excess, nodes, product)
        return found.take(product < self._limit)

    def _promising(self, suffixes: _Suffixes) -> _Suffixes:
        """Not too many of them."""
        if len(suffixes) <= self._most_kept:
            return suffixes
        least = np.partition(suffixes.product, self._most_kept)[self._most_kept]
        self._given_up = min(self._given_up, float(least))
        return suffixes.take(suffixes.product < least)

    def _longer(self, suffixes: _Suffixes) -> _Suffixes:
        """With every node before them."""
        step = max(1, _AT_ONCE // (len(self._prices) * self._pace.size))
        found: list[_Suffixes] = []
        number = 0
        for low in range(0, len(suffixes), step):
            found.append(self._with_nodes(suffixes.take(slice(low, low + step))))
            number += len(found[-1])
            if number > 4 * self._most_kept:
                found = [self._trimmed(_Suffixes.joined(found))]
                number = len(found[0])
        return _Suffixes.joined(found)

    def _trimmed(self, suffixes: _Suffixes) -> _Suffixes:
        """The best whole clusters, and not too many of the others."""
        is_whole = suffixes.boundary == 0
        whole = suffixes.take(is_whole)
        best = np.argsort(whole.product, kind="stable")[: self._most_kept]
        left = self._promising(suffixes.take(~is_whole))
        return _Suffixes.joined([whole.take(best), left])

    def _with_nodes(self, suffixes: _Suffixes) -> _Suffixes:
        costs, pace = self._costs, self._pace
        stages = 1 + suffixes.nodes.shape[1]
        row, node, start, link = self._options(suffixes, stages)
        pair = costs.index_of[start, suffixes.boundary[row]]
        kept = pair >= 0
        kept &= costs.fits(stages)[pair, node]
        row, node, start, pair = (each[kept] for each in (row, node, start, pair))
        link = link[kept]
        computing = costs.computing[pair, node]
        loop = suffixes.loop[row] + link + computing
        own = pace.periods * np.maximum(computing, loop / stages) + costs.update[pair, node]
        return self._seen(
            start,
            suffixes.price[row] + self._prices[node],
            loop,
            np.maximum(suffixes.excess[row], own),
            np.concatenate((node[:, None], suffixes.nodes[row]), axis=1),
        )

    def _options(self, suffixes: _Suffixes, stages: int) -> tuple[Ints, Ints, Ints, Floats]:
        """Suffix, node, start and the link's seconds of all stages to look at."""
        costs, pace = self._costs, self._pace
        boundary, first = suffixes.boundary[:, None], suffixes.nodes[:, :1]
        link = costs.link(boundary, first, np.arange(len(self._prices)))
        known = (pace.is_flushed * suffixes.loop + suffixes.excess)[:, None]
        price = suffixes.price[:, None] + self._prices
        # Whatever it computes takes fill + periods times as long, but no longer than this.
        spare = self._limit / price - known - pace.is_flushed * link
        kinds = len(costs.first_fitting)
        lowest = costs.first_fitting[min(stages, kinds) - 1][suffixes.boundary]
        is_free = (spare > 0) & (lowest <= boundary)
        np.put_along_axis(is_free, suffixes.nodes, False, axis=1)
        row, node = np.nonzero(is_free)
        at = row, node
        low, high = lowest[at], suffixes.boundary[row]
        low = np.maximum(low, self._lowest_start(high, node, spare[at], suffixes.excess[row]))
        if stages == self._most:
            high = np.minimum(high, 0)
        number = np.maximum(high - low + 1, 0)
        option = np.repeat(np.arange(len(row)), number)
        start = np.arange(len(option)) + np.repeat(low - np.cumsum(number) + number, number)
        return row[option], node[option], start, link[at][option]

    def _lowest_start(self, end: Ints, node: Ints, spare: Floats, excess: Floats) -> Ints:
        """The first start from which a node computes what comes before an end in the time left."""
        pace, costs = self._pace, self._costs
        # step >= fill (L + C) + max(E, periods C), of which fill L + E is known.
        spare = np.minimum(
            spare / max(pace.is_flushed, 1e-9),
            (spare + excess) / max(pace.is_flushed + pace.periods, 1e-9),
        )
        most = spare * costs.traits.flops[node] / pace.factor(2) * (1 + 1e-9)
        less_than = pace.work[0, end] - most
        reached = pace.work[0, -1] - pace.work[:, -1]  # at the latest, where a stage may start
        found: Ints = np.searchsorted(reached, less_than)
        return found


def _undominated(suffixes: _Suffixes) -> _Suffixes:
    """Those that the one of least L, of the same nodes, first node and boundary, exceeds in E."""
    if suffixes.nodes.shape[1] < 3:  # two nodes of which one is the first have one order
        return suffixes
    same = np.column_stack(
        (suffixes.boundary, suffixes.nodes[:, 0], np.sort(suffixes.nodes, axis=1))
    )
    order = np.lexsort((suffixes.excess, suffixes.loop, *same.T))
    same, excess = same[order], suffixes.excess[order]
    is_new = np.concatenate(([True], (same[1:] != same[:-1]).any(axis=1)))
    first = np.maximum.accumulate(np.where(is_new, np.arange(len(order)), 0))
    kept = is_new | (excess < excess[first] * _EQUAL)
    return suffixes.take(order[kept])
