"""Hundreds of nodes: a bound by clusters that may take a node twice.

In such a pool most nodes have their like. A cluster that takes one twice is worth hardly more than
one that takes its like, so little is lost by letting it. Prices come first: by paths with
multipliers, which say soon what is worth too much (`multipliers`), prices told by those of a few
nodes (`alike`) at first. At such prices few ends of pipelines are left to look at one by one, those
than which no other one is cheaper, shorter and faster (`suffixes`), and that makes the bound tight.
Nodes alone and pairs are known by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools import multipliers
from ravnest.planning.pools.alike import nearest, spread
from ravnest.planning.pools.columns import Columns, rates_of
from ravnest.planning.pools.costs import MANY_KINDS, StageCosts
from ravnest.planning.pools.prices import Pricing, worth_of_pairs
from ravnest.planning.pools.suffixes import Wanted, worthy_clusters
from ravnest.planning.pools.terrain import Terrain
from ravnest.planning.pools.walks import Ground
from ravnest.planning.search.pace import Pace, Traits

_LEAST_PRICE = 0.02  # over what a node would be worth if it could compute all the time
_LIKE = 3  # nodes that are tried in the place of one that is in a cluster twice
_PAIRS = 1000  # that are taken in at once
_NARROW, _WIDEST = 1.03, 1.15  # windows in which clusters are looked at one by one
_KEPT, _TRIED = 80_000, 4_000
_ANY_LENGTH = 10**9
NEAR = 0.95
"""Of a bound: for plans that are, no better one is looked for."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A round of prices.

    Attributes:
        told: nodes whose prices tell all.
        enough: rate over price from which clusters are looked for.
        fall: of its last price that a node keeps at least.
        narrow, tries: see `multipliers.Wanted`; no tries for looking one by one.
    """

    told: int
    enough: float
    fall: float
    narrow: float
    tries: int = 0


_STEPS = (
    _Step(100, 1.25, 0.9, 1.3, 3),
    _Step(100, 1.12, 0.9, 1.15, 4),
    _Step(100, 1.1, 0.9, 1.15, 4),
    _Step(300, 1.06, 0.95, 1.1, 5),
)
_ONE_BY_ONE = (
    _Step(300, 1.05, 0.95, _NARROW),
    _Step(300, 1.03, 0.95, _NARROW),
    _Step(300, 1.03, 0.97, _NARROW),
    _Step(300, 1.02, 0.97, _NARROW),
    _Step(300, 1.02, 0.97, _NARROW),
)
_ONE_BY_ONE_OF_MANY = (
    _Step(300, 1.08, 0.95, _NARROW),
    _Step(300, 1.06, 0.95, _NARROW),
    _Step(300, 1.05, 0.97, _NARROW),
    _Step(300, 1.04, 0.97, _NARROW),
    _Step(300, 1.04, 0.97, _NARROW),
    _Step(300, 1.03, 0.97, _NARROW),
)
_MANY = 400  # nodes


class RepeatedSearch:
    """One search.

    Args:
        loose: that bounds clusters along all cuts.
        columns: clusters that were found otherwise; is added to.
    """

    def __init__(self, loose: Pace, traits: Traits, columns: Columns) -> None:
        self._loose, self._traits, self._columns = loose, traits, columns
        self._terrain = Terrain(loose, traits)
        self._ground = Ground(StageCosts(loose, traits, MANY_KINDS))
        self._pricing = Pricing(loose, traits, knows_triples=False)
        self._worth: Floats = traits.flops / max(float(loose.work[0, -1]), 1e-300)
        self._like = nearest(traits, np.arange(len(traits)), 1 + _LIKE)[0]
        # As the bound sees them.
        self._rates = {key: rate for key, (_, rate) in columns.found.items()}

    def run(self, rate: float) -> float:
        """A rate that no clusters that average have more of together.

        Args:
            rate: of a plan; a bound that this is near enough to is good enough.
        """
        bound = np.inf
        if not self._rates:  # nothing tells prices
            return bound
        prices = np.zeros_like(self._worth)
        many = len(self._traits) > _MANY
        for step in (*_STEPS, *(_ONE_BY_ONE_OF_MANY if many else _ONE_BY_ONE)):
            prices = self._priced(prices, step)
            is_complete = True
            if step.tries:
                ratio = self._by_paths(prices, step)
            else:
                ratio, is_complete = self._one_by_one(prices, step)
            bound = min(bound, float(prices.sum()) * ratio)
            if rate >= NEAR * bound or not is_complete:
                break
        return bound

    def _one_by_one(self, prices: Floats, step: _Step) -> tuple[float, bool]:
        """What no cluster is worth more than over its price, and whether none were given up."""
        counted = np.zeros(len(prices), dtype=np.bool_)
        limits = _ANY_LENGTH, _KEPT, _TRIED, step.narrow, _WIDEST
        seen = worthy_clusters(self._ground, Wanted(prices, counted, step.enough, *limits))
        for orders, rates in zip(seen.clusters, seen.rates, strict=True):
            self._take(orders, rates)
        return seen.ratio, seen.is_complete

    def _by_paths(self, prices: Floats, step: _Step) -> float:
        """What no cluster is worth more than over its price; takes in some that are worth much."""
        pricing = self._pricing
        own = prices[pricing.order]
        known = float((pricing.alone / own).max())
        if pricing.most_stages > 1:
            worth = worth_of_pairs(pricing, own)
            known = max(known, float(worth.max()))
            root, leaf = np.nonzero(worth > min(known, 1.0 + (step.enough - 1.0) / 3))
            best = np.argsort(-worth[root, leaf], kind="stable")[:_PAIRS]
            self._rate(pricing.order[np.stack((root[best], leaf[best]), axis=1)])
        met: set[tuple[int, ...]] = set()
        wanted = multipliers.Wanted(prices, max(step.enough, known), step.narrow, step.tries)
        found = multipliers.largest_ratio(self._terrain, wanted, met)
        for size in sorted({len(each) for each in met}):
            self._rate(np.array(sorted(each for each in met if len(each) == size)))
        return found

    def _rate(self, orders: Ints) -> None:
        """Takes in clusters of a size."""
        if len(orders):
            self._take(orders, rates_of(self._loose, self._traits, orders))

    def _take(self, orders: Ints, rates: Floats) -> None:
        """Takes in clusters, and where a node is in one twice what has its like instead."""
        for order, rate in zip(orders.tolist(), rates.tolist(), strict=True):
            key = tuple(sorted(order))
            self._rates[key] = max(rate, self._rates.get(key, 0.0))
        self._columns.add(tuple(order) for order in _with_others(orders, self._like).tolist())

    def _priced(self, prices: Floats, step: _Step) -> Floats:
        """The cheapest prices that no cluster so far is worth more than."""
        told, chosen = spread(self._traits, self._worth, step.told)
        rows = [index for index, key in enumerate(self._rates) for _ in key]
        nodes = [node for key in self._rates for node in key]
        shape = len(self._rates), len(self._traits)
        matrix = sparse.csr_matrix((np.full(len(rows), -1.0), (rows, nodes)), shape=shape)
        least = np.maximum(_LEAST_PRICE, step.fall * prices[chosen] / self._worth[chosen])
        result = optimize.linprog(
            np.asarray(told.sum(axis=0)).ravel(),
            A_ub=matrix @ told,
            b_ub=-np.array(list(self._rates.values())),
            bounds=np.column_stack((least, np.full(len(least), np.inf))),
            method="highs",
        )
        return np.asarray(told @ result.x)


def _with_others(orders: Ints, like: Ints) -> Ints:
    """Orders, and where a node is in one twice those with its like in the second place."""
    found = [orders]
    for place in range(1, orders.shape[1]):
        is_again = (orders[:, :place] == orders[:, place : place + 1]).any(axis=1)
        again = orders[is_again]
        for column in range(1, like.shape[1]):
            changed = again.copy()
            changed[:, place] = like[again[:, place], column]
            found.append(changed)
    whole = np.concatenate(found)
    in_order = np.sort(whole, axis=1)
    is_once = (np.diff(in_order, axis=1) > 0).all(axis=1)
    kept: Ints = whole[is_once]
    return kept
