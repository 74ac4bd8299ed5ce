"""Many nodes: clusters by column generation, and a proven bound.

The linear programme over all clusters (how much of each to take, every node at most once) has far
too many columns; good ones are found by prices of the nodes (Gilmore and Gomory 1961): the best
clusters through every node by the shortest paths of `prices`, whose true rates then become columns.
Prices start at what each node computes, and are multiplied by what the best cluster through it is
worth over its price, until every node is in some cluster that is just worth its price: what the
duals of the programme have, which could follow. The best prices seen give the bound. Whole
clusters come from an integer programme over the columns for some hundred nodes, and from rounding
the linear one in rounds for more. HiGHS solves them (scipy), limited by nodes of its tree and never
by time: the same pool gives the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import optimize, sparse

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.prices import Pricing
from ravnest.planning.pools.reach import Reach
from ravnest.planning.pools.surveying import survey, surveyed
from ravnest.planning.pools.validity import valid_ratio
from ravnest.planning.search.labels import relaxed_pair
from ravnest.planning.search.pace import Pace, Traits

_GUESS = 0.7  # of what a node computes alone goes into its first price
_CHANGE = (0.8, 2.0)
_MOST_INTEGER = 200  # nodes up to which whole clusters come from an integer programme
_TAKEN = 0.6
_GAP = 1e-3
_TREE = 50
_NARROW = 1.1
_QUICK = 6  # windows that are halved to compare prices
_PART = 0.5
_LATE = 2  # of the first iterations, so many last ones are held against the bound
_FEW, _SOME, _MORE = 60, 100, 400


@dataclass(frozen=True, slots=True)
class Effort:
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
    def for_nodes(cls, number: int) -> Effort:
        """What takes a second or so up to 100 nodes, and some ten up to 1,000."""
        if number <= _FEW:
            return cls(2, 7, 0.1, 1.35, 24)
        if number <= _SOME:
            return cls(2, 4, 0.5, 1.35, 16)
        return cls(3, 8, 0.5, 1.3, 32) if number <= _MORE else cls(3, 5, 0.5, 1.35, 24)


@dataclass(slots=True)
class Columns:
    """Clusters found so far: the best order and rate per set of nodes."""

    pace: Pace
    traits: Traits
    found: dict[tuple[int, ...], tuple[tuple[int, ...], float]] = field(default_factory=dict)

    def add(self, orders: Iterable[tuple[int, ...]]) -> None:
        """Takes in clusters with their true rates."""
        by_size: dict[int, list[tuple[int, ...]]] = {}
        for order in orders:
            by_size.setdefault(len(order), []).append(order)
        for _, same in sorted(by_size.items()):
            rates = rates_of(self.pace, self.traits, np.array(same))
            for order, rate in zip(same, rates.tolist(), strict=True):
                key = tuple(sorted(order))
                if rate > 0 and (key not in self.found or self.found[key][1] < rate):
                    self.found[key] = (order, rate)

    def matrix(self, keys: Sequence[tuple[int, ...]]) -> sparse.csr_matrix:
        """Nodes by columns, 1 where a cluster has a node."""
        rows = [node for key in keys for node in key]
        columns = [index for index, key in enumerate(keys) for _ in key]
        shape = (len(self.traits), len(keys))
        return sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=shape)

    def rates(self, keys: Sequence[tuple[int, ...]]) -> Floats:
        """Of these clusters."""
        return np.array([self.found[key][1] for key in keys])


def rates_of(pace: Pace, traits: Traits, orders: Ints) -> Floats:
    """Microbatches per second of pipelines [row, stage] along their best cuts; 0 where none fits.

    By two labels, see `labels`: an upper bound that is nearly always the truth.
    """
    rows, stages = orders.shape
    excess = np.full((rows, 2, pace.size), np.inf)
    excess[:, 0, -1] = 0.0
    loop = excess.copy()
    for index in range(stages - 1, -1, -1):
        added = traits.take(orders[:, index])
        new_excess, new_loop = np.full_like(excess, np.inf), np.full_like(loop, np.inf)
        for start in range(pace.size - 1) if index else (0,):
            longer, larger = pace.prepend(loop, excess, added, stages - index, start)
            pair = relaxed_pair(larger.reshape(rows, -1), longer.reshape(rows, -1))
            new_excess[:, :, start], new_loop[:, :, start] = pair
        excess, loop = new_excess, new_loop
        if index:
            loop += pace.link_seconds(added, traits.take(orders[:, index - 1]))[:, None]
    times = pace.step_time(loop[:, :, 0], excess[:, :, 0]).min(axis=1)
    return np.where(np.isfinite(times), pace.microbatch_rate(times), 0.0)


@dataclass(frozen=True, slots=True)
class Pool:
    """What a search found.

    Attributes:
        clusters: orders of nodes, disjoint.
        fastest: the one cluster with the highest rate, None where none fits.
        prices: of the nodes, near those that prove the best bound.
    """

    clusters: list[tuple[int, ...]]
    fastest: tuple[int, ...] | None
    prices: Floats


def search_pool(pace: Pace, traits: Traits, effort: Effort) -> Pool:
    """Clusters with much rate, and prices for a bound."""
    knows_triples = len(traits) <= _SOME
    reach = Reach(Pricing(pace, traits, knows_triples=knows_triples))
    kinds = max(surveyed(reach), default=0)
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
            prices = part * _dual(loose, alone) + (1 - part) * best if loose else best
    fastest = max(columns.found.values(), key=lambda each: each[1], default=None)
    return Pool(_whole(columns), None if fastest is None else fastest[0], best)


def upper_bound(reach: Reach, prices: Floats, windows: int) -> float:
    """A rate that no plan has more of."""
    return float(prices.sum()) * valid_ratio(reach, prices, windows)


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


def _dual(loose: dict[tuple[int, ...], float], alone: Floats) -> Floats:
    """The cheapest prices that none of some clusters is worth more than."""
    rows = [index for index, key in enumerate(loose) for _ in key]
    nodes = [node for key in loose for node in key]
    shape = (len(loose), len(alone))
    matrix = sparse.csr_matrix((np.full(len(rows), -1.0), (rows, nodes)), shape=shape)
    rates = -np.array(list(loose.values()))
    floor = np.maximum(alone, 1e-6 * alone.max(initial=-rates.min()))
    result = optimize.linprog(
        np.ones(len(alone)),
        A_ub=matrix,
        b_ub=rates,
        bounds=np.column_stack((floor, np.full(len(alone), np.inf))),
        method="highs",
    )
    return np.asarray(result.x)


def _relaxation(columns: Columns, keys: Sequence[tuple[int, ...]]) -> Floats:
    """How much of each cluster the linear programme takes."""
    result = optimize.linprog(
        -columns.rates(keys),
        A_ub=columns.matrix(keys),
        b_ub=np.ones(len(columns.traits)),
        bounds=(0, None),
        method="highs",
    )
    return np.asarray(result.x)


def _whole(columns: Columns) -> list[tuple[int, ...]]:
    """Disjoint clusters of much rate."""
    if not columns.found:
        return []
    keys = sorted(columns.found)
    if len(columns.traits) <= _MOST_INTEGER:
        result = optimize.milp(
            -columns.rates(keys),
            constraints=optimize.LinearConstraint(columns.matrix(keys), -np.inf, 1.0),
            integrality=np.ones(len(keys)),
            bounds=optimize.Bounds(0, 1),
            options={"mip_rel_gap": _GAP, "node_limit": _TREE},
        )
        if result.x is not None:
            chosen = [key for key, share in zip(keys, result.x, strict=True) if share > 0.5]
            return [columns.found[key][0] for key in chosen]
    return _rounded(columns, keys)


def _rounded(columns: Columns, keys: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Takes what the linear programme takes nearly whole, and asks it again about the rest."""
    chosen: list[tuple[int, ...]] = []
    while keys:
        shares = _relaxation(columns, keys)
        ranked = sorted(range(len(keys)), key=lambda index: (-shares[index], keys[index]))
        limit = min(_TAKEN, float(shares[ranked[0]]) - 1e-9)
        taken: set[int] = set()
        for index in ranked:
            if shares[index] < limit:
                break
            if taken.isdisjoint(keys[index]):
                chosen.append(keys[index])
                taken.update(keys[index])
        keys = [key for key in keys if taken.isdisjoint(key)]
    return [columns.found[key][0] for key in chosen]
