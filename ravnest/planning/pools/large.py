"""Many nodes: clusters by column generation, and prices that prove a bound.

The linear programme over all clusters (how much of each to take, every node at most once) has far
too many columns; good ones are found by prices of the nodes (Gilmore and Gomory 1961). First
prices are multiplied by what the best cluster through each node is worth over its price, by the
shortest paths of `prices`. Then they are the duals of the programme over what has been found, and
`suffixes` finds every cluster that is worth clearly more than its price; when there is none left,
the prices are a proof that no plan has a rate of more than their sum (weak duality). As long as
prices are far from that, only clusters worth much more are looked for, and not many.

No price may be nothing: nodes that no plan needs would be in countless clusters that are worth
nearly as much as others. Nodes of little price may be in a cluster twice, for the same reason.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ravnest.planning.pools.columns import Columns, duals
from ravnest.planning.pools.costs import StageCosts
from ravnest.planning.pools.diving import LONG_DIVE, whole_clusters
from ravnest.planning.pools.prices import Pricing
from ravnest.planning.pools.reach import Reach
from ravnest.planning.pools.suffixes import WIDEST, Wanted, Worthy, worthy_clusters
from ravnest.planning.pools.surveying import survey, surveyed
from ravnest.planning.pools.walks import Ground
from ravnest.planning.search.pace import Pace, Traits

_GUESS = 0.7  # of what a node computes alone goes into its first price
_CHANGE = (0.8, 2.0)
_SURVEYS = 2
_WINDOW = 1.35  # width of those that are surveyed
_LEAST_PRICE = 0.02  # over what a node would be worth if it could compute all the time
_COUNTED = 0.3  # the same for nodes that count
_NARROW = 1.1
_KEPT = 12 * 10**6  # nodes, boundaries and suffixes of a length that are kept, multiplied
_LEAST_KEPT = 1000
_ENOUGH = 1.025  # in the end: less of it proves more and takes longer
_ANY_LENGTH = 10**9
MOST_NEEDED = 4  # stages


@dataclass(frozen=True, slots=True)
class _Step:
    """How clusters are looked for, for some rounds of prices.

    Attributes:
        enough: rate over price from which on.
        most_stages: of their stages, unless none has so few.
        most_kept, narrow: see `Wanted`.
    """

    enough: float
    most_stages: int
    most_kept: int
    narrow: float = 1.3


@dataclass(frozen=True, slots=True)
class Look:
    """How long to look.

    Short clusters are quickly looked through, and say most about prices. Where there is time for
    all of them, a last step looks at clusters of any length, and with that the prices are a proof.

    Attributes:
        steps: before the last.
        rounds: of prices for each step, at most.
        most_tried: see `Wanted`.
        most_kept: the same of the last step.
        is_hopeful: there is a last step though the steps before it had too many clusters.
    """

    steps: tuple[_Step, ...]
    rounds: int
    most_tried: int
    most_kept: int
    is_hopeful: bool


_SHORT = (_Step(1.2, 3, 1000, WIDEST), _Step(1.03, 3, 3000, WIDEST))
QUICK = Look(_SHORT, 2, 400, 3000, is_hopeful=False)
"""For a good plan, and a proof where that is cheap."""

_BY_LENGTH = (*_SHORT, _Step(1.06, _ANY_LENGTH, 1000))
PROVING = Look(_BY_LENGTH, 8, 4_000, 8000, is_hopeful=True)
"""For a proof: with so many nodes that this will not do, more hardly ever does."""
PROVING_FEW = Look(_BY_LENGTH, 8, 16_000, 8000, is_hopeful=True)

COLLECTING = Look(_SHORT, 2, 400, 0, is_hopeful=False)
"""For clusters alone."""
COLLECTING_FAST = Look(
    (_Step(1.15, 3, 1500, WIDEST), _Step(1.03, 3, 3000, WIDEST)), 1, 400, 0, is_hopeful=False
)


@dataclass(frozen=True, slots=True)
class Pool:
    """What a search found.

    Attributes:
        clusters: orders of nodes, disjoint.
        fastest: the one cluster with the highest rate, None where none fits.
        bound: a rate that no clusters that average have more of together.
        is_proven: all clusters were looked at for the bound, which then is tight.
    """

    clusters: list[tuple[int, ...]]
    fastest: tuple[int, ...] | None
    bound: float
    is_proven: bool


class PoolSearch:
    """One search.

    Args:
        pace: along the cuts that clusters may have.
        coarse: along fewer, for the first prices.
        loose: that bounds clusters along all cuts; may be `pace` itself.
        look: how long.
    """

    def __init__(self, pace: Pace, coarse: Pace, loose: Pace, traits: Traits, look: Look) -> None:
        self._traits, self._coarse, self._look = traits, coarse, look
        self._is_exact = loose is pace
        self._ground = Ground(StageCosts(loose, traits))
        self._columns = Columns(pace, traits)
        self._rates: dict[tuple[int, ...], float] = {}  # as the bound sees them
        self._worth = traits.flops / max(float(pace.work[0, -1]), 1e-300)
        self._fewest = 0  # stages of clusters of more than two nodes

    def run(self) -> Pool:
        """Looks for clusters and for prices."""
        columns, is_complete = self.collected()
        if columns is None:
            return Pool([], None, np.inf, is_proven=False)
        bound, is_proven = np.inf, False
        if is_complete or self._look.is_hopeful:
            size = len(self._traits) * self._ground.costs.pace.size
            kept = min(max(_KEPT // size, _LEAST_KEPT), self._look.most_kept)
            bound, is_proven = self._priced(_Step(_ENOUGH, _ANY_LENGTH, kept), is_last=True)
        return Pool(whole_clusters(columns, LONG_DIVE), columns.fastest, bound, is_proven)

    def collected(self) -> tuple[Columns | None, bool]:
        """The clusters of all steps but the last, and whether the last of those looked at all.

        None where even the shortest clusters are too long: there are far too many to look at.
        """
        self._fewest = self._survey()
        if self._fewest > MOST_NEEDED:
            return None, False
        is_complete = False
        for step in self._look.steps:
            _, is_complete = self._priced(step)
        return self._columns, is_complete

    def _survey(self) -> int:
        """First clusters; the fewest stages of those of more than two nodes."""
        reach = Reach(Pricing(self._coarse, self._traits, knows_triples=False))
        sizes = surveyed(reach)
        if sizes.start > MOST_NEEDED:
            return sizes.start
        kinds = max(sizes, default=0)
        if kinds > reach.pricing.num_kinds:
            reach = Reach(Pricing(self._coarse, self._traits, kinds, knows_triples=False))
        alone = reach.pricing.in_pool_order(reach.pricing.alone)
        self._columns.add((node,) for node in np.flatnonzero(alone > 0).tolist())
        prices = np.maximum(alone, _GUESS * self._worth)
        known: dict[float, float] = {}
        for _ in range(_SURVEYS):
            seen = survey(reach, prices, _WINDOW, known)
            self._columns.add(seen.clusters)
            prices = np.maximum(alone, prices * np.clip(seen.worth, *_CHANGE))
        self._rates.update((key, rate) for key, (_, rate) in self._columns.found.items())
        return sizes.start

    def _priced(self, step: _Step, *, is_last: bool = False) -> tuple[float, bool]:
        """A bound, by prices that clusters are hardly worth more than; whether that is proven."""
        best = np.inf, False
        for _ in range(self._look.rounds):
            prices = duals(self._rates, _LEAST_PRICE * self._worth)
            counted = prices > _COUNTED * self._worth
            stages = max(step.most_stages, self._fewest)
            limits = stages, step.most_kept, self._look.most_tried, step.narrow
            wanted = Wanted(prices, counted, step.enough, *limits)
            seen = worthy_clusters(self._ground, wanted)
            best = min(best, (float(prices.sum()) * seen.ratio, seen.is_complete))
            if not self._take(seen) or (is_last and not seen.is_complete):
                break
        return best

    def _take(self, seen: Worthy) -> bool:
        """Takes in what was found; whether there was anything."""
        for nodes, rates in zip(seen.clusters, seen.rates, strict=True):
            orders = [tuple(order) for order in nodes.tolist()]
            once = [len(set(order)) == len(order) for order in orders]
            if not self._is_exact:
                self._columns.add(itertools.compress(orders, once))
            for order, rate, is_once in zip(orders, rates.tolist(), once, strict=True):
                key = tuple(sorted(order))
                self._rates[key] = max(rate, self._rates.get(key, 0.0))
                if self._is_exact and is_once:
                    self._columns.add_rated(order, rate)
        return bool(seen.clusters)


def fastest_cluster(reach: Reach) -> float:
    """A rate that no single cluster has more of."""
    pricing, pace = reach.pricing, reach.pricing.pace
    best = max(float(pricing.alone.max()), float(pricing.pairs.max(initial=0.0)))
    if pricing.most_stages < pricing.first:
        return best
    for window in pricing.windows(_NARROW):
        for stages in range(pricing.first, pricing.most_stages + 1):
            if reach.is_possible(window, stages):
                loop = reach.least_loop_of(window, stages)
                best = max(best, pace.frequency / (pace.is_flushed * loop + window.low_s))
        if pace.frequency / window.high_s < best:
            break
    return best
