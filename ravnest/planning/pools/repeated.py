"""Hundreds of nodes: a bound by clusters that may take a node twice.

In such a pool most nodes have their like. A cluster that takes one twice is worth hardly more than
one that takes its like, so little is lost by letting it: what is then left to look at are ends of
pipelines than which no other one is cheaper, shorter and faster (`suffixes`). First prices are told
by those of a few nodes (`alike`), then by more, the last ones by all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.alike import nearest, spread
from ravnest.planning.pools.columns import Columns, rates_of
from ravnest.planning.pools.costs import MANY_KINDS, StageCosts
from ravnest.planning.pools.suffixes import Wanted, Worthy, worthy_clusters
from ravnest.planning.pools.walks import Ground
from ravnest.planning.search.pace import Pace, Traits

_LEAST_PRICE = 0.01  # over what a node would be worth if it could compute all the time
_WIDEST, _NARROW = 1.15, 1.04  # windows in which clusters are looked at
_KEPT = 1500
_TRIED, _TRIED_IN_HASTE = 20_000, 8_000
_ANY_LENGTH = 10**9
_LIKE = 3  # nodes that are tried in the place of one that is in a cluster twice


@dataclass(frozen=True, slots=True)
class _Step:
    """A round of prices.

    Attributes:
        told: nodes whose prices tell all.
        enough: rate over price from which clusters are looked for.
        fall: of its last price that a node keeps at least.
    """

    told: int
    enough: float
    fall: float


_STEPS = (
    _Step(100, 1.2, 0.9),
    _Step(100, 1.13, 0.9),
    _Step(100, 1.1, 0.93),
    _Step(150, 1.08, 0.95),
    _Step(300, 1.06, 0.95),
    _Step(300, 1.05, 0.97),
    _Step(300, 1.05, 0.97),
)


class RepeatedSearch:
    """One search.

    Args:
        loose: that bounds clusters along all cuts.
        columns: clusters that were found otherwise; is added to.
        is_patient: goes on when there are too many clusters to look at.
    """

    def __init__(
        self, loose: Pace, traits: Traits, columns: Columns, *, is_patient: bool = True
    ) -> None:
        self._is_patient = is_patient
        self._pace, self._traits, self._columns = columns.pace, traits, columns
        self._ground = Ground(StageCosts(loose, traits, MANY_KINDS))
        self._worth: Floats = traits.flops / max(float(loose.work[0, -1]), 1e-300)
        self._like = nearest(traits, np.arange(len(traits)), 1 + _LIKE)[0]
        # As the bound sees them.
        self._rates = {key: rate for key, (_, rate) in columns.found.items()}

    def run(self) -> float:
        """A rate that no clusters that average have more of together."""
        bound = np.inf
        if not self._rates:  # nothing tells prices
            return bound
        prices = self._priced(np.zeros_like(self._worth), _STEPS[0])
        counted = np.zeros(len(prices), dtype=np.bool_)
        tried = _TRIED if self._is_patient else _TRIED_IN_HASTE
        limits = _ANY_LENGTH, _KEPT, tried, _NARROW, _WIDEST
        for step in _STEPS:
            seen = worthy_clusters(self._ground, Wanted(prices, counted, step.enough, *limits))
            bound = min(bound, float(prices.sum()) * seen.ratio)
            if not (seen.is_complete or self._is_patient):
                break
            self._take(seen)
            prices = self._priced(prices, step)
        return bound

    def _take(self, seen: Worthy) -> None:
        """Takes in what was found, and where a node is in it twice what has its like instead."""
        for orders, rates in zip(seen.clusters, seen.rates, strict=True):
            for order, rate in zip(orders.tolist(), rates.tolist(), strict=True):
                key = tuple(sorted(order))
                self._rates[key] = max(rate, self._rates.get(key, 0.0))
            once = _with_others(orders, self._like)
            if len(once):
                for order, rate in zip(
                    once.tolist(), rates_of(self._pace, self._traits, once).tolist(), strict=True
                ):
                    self._columns.add_rated(tuple(order), rate)

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
