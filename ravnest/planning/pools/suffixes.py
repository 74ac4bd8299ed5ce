"""Every cluster that is worth more than a share of its price, built from the leaf.

Clusters are looked at by the largest E of their stages, in windows; one in which there are too many
is halved. Suffixes of pipelines are made longer by every node that they lack and every cut, and
given up where the least that the rest costs (`outlook`) lets no cluster be worth enough. Of
suffixes of as many stages from the same boundary on, those are left out that another one, of fewer
nodes that count, exceeds in nothing: price, L with the link before it, and E. Nodes of little price
do not count: they may be in a cluster twice, which makes what is proven weaker only (Righini and
Salani 2008). Where too many are left in a narrow window, the least promising are given up, and what
they could have been worth is the answer's uncertainty.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.table import Bools, Floats, Ints
from ravnest.planning.pools.dominance import undominated
from ravnest.planning.pools.ends import Sets, Suffixes, members, single_sets
from ravnest.planning.pools.outlook import Outlook
from ravnest.planning.pools.walks import Ground

_AT_ONCE = 2 * 10**6  # stages that are looked at together
_HOPELESS = 1.3  # times what is enough: when that may have been given up, nothing is proven
_SLACK = 1.0 + 1e-9  # rounding of sums in another order proves nothing
WIDEST = 2.0
"""Width of windows at first."""

_BEST = 300  # clusters of a length and a window that are told


@dataclass(frozen=True, slots=True)
class Worthy:
    """Clusters that are worth enough.

    Attributes:
        ratio: no cluster that was looked for has a larger rate over price.
        is_complete: none were given up that could be worth enough.
        clusters: the best of them by number of stages, nodes from root to leaf: [cluster, stage].
        rates: of these.
    """

    ratio: float
    is_complete: bool
    clusters: tuple[Ints, ...]
    rates: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What clusters are looked for.

    Attributes:
        prices: of the nodes, all above 0.
        counted: nodes that no cluster may have twice.
        enough: rate over price from which clusters are of interest.
        most_stages: clusters of more are not looked for.
        most_kept: suffixes of a length that are made longer.
        most_tried: stages that are looked at in all windows, over `most_kept`.
        narrow: windows wider than this are halved when they have more.
        widest: windows wider than this are halved when they have any.
    """

    prices: Floats
    counted: Bools
    enough: float
    most_stages: int
    most_kept: int
    most_tried: int
    narrow: float
    widest: float = WIDEST


def worthy_clusters(ground: Ground, wanted: Wanted) -> Worthy:
    """Looks for them in all windows."""
    costs, pace = ground.costs, ground.costs.pace
    high = pace.frequency / wanted.enough / float(wanted.prices.min())
    least_loop = float(pace.work[0, -1] / costs.traits.flops.max())
    low = max(pace.periods * least_loop / costs.most_stages, 1e-6 * high)
    number = 1 + int(np.ceil(np.log(max(high / low, 1.0)) / np.log(WIDEST)))
    edges = (high * WIDEST ** -np.arange(number, -1.0, -1.0)).tolist()
    edges[0] = 0.0
    open_ = list(itertools.pairwise(edges))
    found: list[Worthy] = []
    tried = 0
    while open_:
        low, high = open_.pop()
        search = _WindowSearch(ground, wanted, low, high, tried)
        seen = search.run(may_be_many=high <= low * wanted.narrow or not low)
        tried = search.tried
        if seen is None:
            middle = (low * high) ** 0.5
            open_ += [(low, middle), (middle, high)]
        else:
            found.append(seen)
    return Worthy(
        max(each.ratio for each in found),
        all(each.is_complete for each in found),
        tuple(nodes for each in found for nodes in each.clusters),
        tuple(rates for each in found for rates in each.rates),
    )


class _WindowSearch:
    """Looks for clusters of an E of no more than a limit, and of no less than another one."""

    def __init__(
        self, ground: Ground, wanted: Wanted, low_s: float, high_s: float, tried: int
    ) -> None:
        self.tried = tried  # stages that were looked at, those of other windows included
        self._costs, self._pace, self._prices = ground.costs, ground.costs.pace, wanted.prices
        self._low_s, self._high_s = low_s, high_s * (1 + 1e-9)
        self._most = min(wanted.most_stages, self._costs.most_stages)
        self._most_kept = wanted.most_kept
        self._most_tried = wanted.most_tried * wanted.most_kept
        self._is_wide = high_s > low_s * wanted.widest * (1 + 1e-9) and low_s > 0
        self._limit = self._pace.frequency / wanted.enough
        self._given_up = np.inf  # the least product of those that were
        self._outlook = Outlook(ground, wanted.prices, low_s, high_s, self._most)
        self._own: Sets = single_sets(wanted.counted)

    def run(self, *, may_be_many: bool) -> Worthy | None:
        """Looks for them; None where there are many that must not be."""
        found: list[Suffixes] = []
        suffixes = self._leaves()
        while len(suffixes):
            is_whole = suffixes.boundary == 0
            found.append(self._best(suffixes.take(is_whole)))
            left = self._undominated(suffixes.take(~is_whole))
            if not may_be_many and len(left) > self._most_kept * (not self._is_wide):
                return None
            left = self._promising(left)
            if left.nodes.shape[1] >= self._most or not len(left):
                break
            is_too_long = self.tried > self._most_tried
            if is_too_long or self._given_up * _HOPELESS < self._limit:
                self._given_up = min(self._given_up, float(left.product.min()))
                break
            suffixes = self._longer(left)
        return self._answer([each for each in found if len(each)])

    def _answer(self, found: Sequence[Suffixes]) -> Worthy:
        pace = self._pace
        least = min((float(each.product.min()) for each in found), default=self._limit)
        return Worthy(
            pace.frequency / min(least, self._given_up) * _SLACK,
            least <= self._given_up,
            tuple(each.nodes for each in found),
            tuple(pace.frequency * each.price / each.product for each in found),
        )

    def _leaves(self) -> Suffixes:
        costs, pace = self._costs, self._pace
        pair, node = np.nonzero(costs.fits(1))
        boundary, price = costs.start[pair], self._prices[node]
        loop = costs.leaf[pair, node]
        excess = pace.periods * costs.leaf_busy[pair, node] + costs.update[pair, node]
        kept, product = self._worth_enough(1, boundary, node, price, loop, excess)
        node = node[kept]
        found = boundary[kept], price[kept], loop[kept], excess[kept]
        return Suffixes(*found, node[:, None], product, self._own[node])

    def _worth_enough(
        self, stages: int, boundary: Ints, first: Ints, price: Floats, loop: Floats, excess: Floats
    ) -> tuple[Ints, Floats]:
        """Which of some suffixes clusters worth enough can have, and their least products."""
        final = np.where(boundary == 0, excess, np.maximum(excess, self._low_s))
        product = price * (self._pace.is_flushed * loop + final)
        kept = np.flatnonzero((product < self._limit) & (excess <= self._high_s))
        product = product[kept]
        is_inner = boundary[kept] > 0
        inner = kept[is_inner]
        product[is_inner] = self._outlook.products(
            stages,
            (boundary[inner], first[inner]),
            price[inner],
            loop[inner] + 2.0 * self._costs.traits.latency_s[first[inner]],
            excess[inner],
        )
        enough = product < self._limit
        return kept[enough], product[enough]

    def _best(self, whole: Suffixes) -> Suffixes:
        """The best whole clusters."""
        return whole.take(np.argsort(whole.product, kind="stable")[:_BEST])

    def _undominated(self, suffixes: Suffixes) -> Suffixes:
        """Those that no other one exceeds in nothing."""
        traits, first = self._costs.traits, suffixes.nodes[:, 0]
        # A link to the node before costs no more than a slower one, and the delay of both ends.
        near = suffixes.loop + 2.0 * traits.latency_s[first]
        far = near + self._costs.num_bytes[suffixes.boundary] / traits.rate[first]
        excess = np.maximum(suffixes.excess, self._low_s)
        values = np.stack((suffixes.price, near, far, excess))
        order = np.lexsort((suffixes.product, suffixes.boundary))
        kept = undominated(values, suffixes.counted, suffixes.boundary, order)
        return suffixes.take(kept)

    def _promising(self, suffixes: Suffixes) -> Suffixes:
        """Not too many of them."""
        if len(suffixes) <= self._most_kept:
            return suffixes
        least = np.partition(suffixes.product, self._most_kept)[self._most_kept]
        self._given_up = min(self._given_up, float(least))
        return suffixes.take(suffixes.product < least)

    def _longer(self, suffixes: Suffixes) -> Suffixes:
        """With every node before them."""
        step = max(1, _AT_ONCE // (len(self._prices) * self._pace.size))
        found: list[Suffixes] = []
        number = 0
        for low in range(0, len(suffixes), step):
            found.append(self._with_nodes(suffixes.take(slice(low, low + step))))
            number += len(found[-1])
            if number > 4 * self._most_kept:
                found = [self._trimmed(Suffixes.joined(found))]
                number = len(found[0])
        return Suffixes.joined(found)

    def _trimmed(self, suffixes: Suffixes) -> Suffixes:
        """The best whole clusters, and not too many of the others."""
        is_whole = suffixes.boundary == 0
        left = self._promising(self._undominated(suffixes.take(~is_whole)))
        return Suffixes.joined([self._best(suffixes.take(is_whole)), left])

    def _with_nodes(self, suffixes: Suffixes) -> Suffixes:
        costs, pace = self._costs, self._pace
        stages = 1 + suffixes.nodes.shape[1]
        row, node, start, link = self._options(suffixes, stages)
        self.tried += len(row)
        pair = costs.index_of[start, suffixes.boundary[row]]
        kept = pair >= 0
        kept &= costs.fits(stages)[pair, node]
        row, node, start, pair = (each[kept] for each in (row, node, start, pair))
        link = link[kept]
        computing = costs.computing[pair, node]
        price = suffixes.price[row] + self._prices[node]
        loop = suffixes.loop[row] + link + computing
        period = np.maximum(costs.busy[pair, node], loop / stages)
        own = pace.periods * period + costs.update[pair, node]
        excess = np.maximum(suffixes.excess[row], own)
        worthy, product = self._worth_enough(stages, start, node, price, loop, excess)
        row, node = row[worthy], node[worthy]
        return Suffixes(
            start[worthy],
            price[worthy],
            loop[worthy],
            excess[worthy],
            np.concatenate((node[:, None], suffixes.nodes[row]), axis=1),
            product,
            suffixes.counted[row] | self._own[node],
        )

    def _options(self, suffixes: Suffixes, stages: int) -> tuple[Ints, Ints, Ints, Floats]:
        """Suffix, node, start and the link's seconds of all stages to look at."""
        costs, pace = self._costs, self._pace
        boundary, first = suffixes.boundary[:, None], suffixes.nodes[:, :1]
        link = costs.link(boundary, first, np.arange(len(self._prices)))
        excess = np.maximum(suffixes.excess, self._low_s)
        known = (pace.is_flushed * suffixes.loop + excess)[:, None]
        price = suffixes.price[:, None] + self._prices
        # Whatever it computes takes fill + periods times as long, but no longer than this.
        spare = self._limit / price - known - pace.is_flushed * link
        kinds = len(costs.first_fitting)
        lowest = costs.first_fitting[min(stages, kinds) - 1][suffixes.boundary]
        is_free = (spare > 0) & (lowest <= boundary)
        is_free &= ~members(suffixes.counted, len(self._prices))
        row, node = np.nonzero(is_free)
        at = row, node
        low, high = lowest[at], suffixes.boundary[row]
        low = np.maximum(low, self._lowest_start(high, node, spare[at], excess[row]))
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
        spare = np.minimum(spare, self._high_s / max(pace.periods, 1e-9))
        most = spare * costs.traits.flops[node] / pace.factor(2) * (1 + 1e-9)
        less_than = pace.work[0, end] - most
        reached = pace.work[0, -1] - pace.work[:, -1]  # at the latest, where a stage may start
        found: Ints = np.searchsorted(reached, less_than)
        return found
