"""Pools that `large` has no time for: prices and a bound by the shortest paths of `prices`.

Prices start at what each node computes, and are multiplied by what the best cluster through it is
worth over its price, until every node is in some cluster that is just worth its price. Then they go
part of the way to the duals of the linear programme over what was found. The best prices seen give
the bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.table import Floats
from ravnest.planning.pools.columns import Columns, duals
from ravnest.planning.pools.prices import Pricing
from ravnest.planning.pools.reach import Reach
from ravnest.planning.pools.surveying import survey, surveyed
from ravnest.planning.pools.validity import valid_ratio
from ravnest.planning.search.pace import Pace, Traits

_GUESS = 0.7  # of what a node computes alone goes into its first price
_CHANGE = (0.8, 2.0)
_QUICK = 6  # windows that are halved to compare prices
_PART = 0.5
_LATE = 2  # of the first iterations, so many last ones are held against the bound
_FEW, _SOME, _MORE = 60, 100, 400


@dataclass(frozen=True, slots=True)
class WindowEffort:
    """How long to look.

    Attributes:
        by_worth: iterations in which prices follow what they are worth.
        by_duals: further ones that go part of the way to the duals.
        least_part: what part that may come down to, from a half.
        step: width of the windows that are surveyed.
        windows: how many are halved for the bound.
    """

    by_worth: int
    by_duals: int
    least_part: float
    step: float
    windows: int

    @classmethod
    def for_nodes(cls, number: int) -> WindowEffort:
        """What takes a second or so up to 100 nodes, and some ten up to 1,000."""
        if number <= _FEW:
            return cls(2, 7, 0.1, 1.35, 24)
        if number <= _SOME:
            return cls(2, 4, 0.5, 1.35, 16)
        return cls(3, 8, 0.5, 1.3, 32) if number <= _MORE else cls(3, 2, 0.5, 1.35, 24)


@dataclass(frozen=True, slots=True)
class PricedPool:
    """What a search found.

    Attributes:
        columns: clusters.
        prices: of the nodes, near those that prove the best bound.
        fewest_stages: of a cluster of more than two.
    """

    columns: Columns
    prices: Floats
    fewest_stages: int


def search_pool(pace: Pace, traits: Traits, effort: WindowEffort) -> PricedPool:
    """Clusters with much rate, and prices for a bound."""
    knows_triples = len(traits) <= _SOME
    reach = Reach(Pricing(pace, traits, knows_triples=knows_triples))
    sizes = surveyed(reach)
    kinds = max(sizes, default=0)
    if kinds > reach.pricing.num_kinds:
        reach = Reach(Pricing(pace, traits, kinds, knows_triples=knows_triples))
    pricing = reach.pricing
    alone = pricing.in_pool_order(pricing.alone)
    columns = Columns(pace, traits)
    columns.add((node,) for node in np.flatnonzero(alone > 0).tolist())
    prices = np.maximum(alone, _GUESS * traits.flops / pace.work[0, -1])
    bound, best, part = np.inf, prices, _PART
    loose: dict[tuple[int, ...], float] = {}
    known: dict[float, float] = {}
    floor = np.maximum(alone, 1e-6 * np.maximum(alone.max(), prices.max()))
    for iteration in range(effort.by_worth + effort.by_duals):
        if iteration == effort.by_worth:
            known.clear()
        seen = survey(reach, prices, effort.step, known)
        columns.add(seen.clusters)
        for key, rate in seen.relaxed.items():
            loose[key] = max(rate, loose.get(key, 0.0))
        if iteration >= effort.by_worth - _LATE:
            culprits: dict[tuple[int, ...], float] = {}
            ratio = valid_ratio(reach, prices, _QUICK, culprits)
            columns.add(order for order in culprits if len(set(order)) == len(order))
            for order, rate in culprits.items():
                key = tuple(sorted(order))
                loose[key] = max(rate, loose.get(key, 0.0))
            if 0.0 < ratio * float(prices.sum()) < bound:
                bound, best, part = ratio * float(prices.sum()), prices * ratio, _PART
            else:  # that was too far from the best (Wentges 1997)
                part = max(effort.least_part, part / 2)
        if iteration < effort.by_worth:
            prices = np.maximum(alone, prices * np.clip(seen.worth, *_CHANGE))
        else:
            prices = part * duals(loose, floor) + (1 - part) * best if loose else best
    return PricedPool(columns, best, sizes.start)


def upper_bound(reach: Reach, prices: Floats, windows: int) -> float:
    """A rate that no plan has more of."""
    return float(prices.sum()) * valid_ratio(reach, prices, windows)
