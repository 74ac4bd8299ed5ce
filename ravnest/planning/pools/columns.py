"""Clusters found so far, and prices of nodes by the linear programme over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import optimize, sparse

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.search.labels import pareto_points
from ravnest.planning.search.pace import Pace, Traits

_LABELS = 3


@dataclass(slots=True)
class Columns:
    """The best order and rate per set of nodes."""

    pace: Pace
    traits: Traits
    found: dict[tuple[int, ...], tuple[tuple[int, ...], float]] = field(default_factory=dict)

    def add(self, orders: Iterable[tuple[int, ...]]) -> None:
        """Takes in clusters with the rates of their best cuts."""
        by_size: dict[int, list[tuple[int, ...]]] = {}
        for order in orders:
            by_size.setdefault(len(order), []).append(order)
        for _, same in sorted(by_size.items()):
            rates = rates_of(self.pace, self.traits, np.array(same))
            for order, rate in zip(same, rates.tolist(), strict=True):
                self.add_rated(order, rate)

    def add_rated(self, order: tuple[int, ...], rate: float) -> None:
        """Takes in a cluster whose rate is known."""
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

    @property
    def fastest(self) -> tuple[int, ...] | None:
        """The one cluster with the highest rate, None where none was found."""
        best = max(self.found.values(), key=lambda each: each[1], default=None)
        return None if best is None else best[0]


def rates_of(pace: Pace, traits: Traits, orders: Ints) -> Floats:
    """Microbatches per second of pipelines [row, stage] along good cuts; 0 where none fits.

    By three labels per boundary, with which they are nearly always the best cuts.
    """
    rows, stages = orders.shape
    excess = np.full((rows, _LABELS, pace.size), np.inf)
    excess[:, 0, -1] = 0.0
    loop = excess.copy()
    for index in range(stages - 1, -1, -1):
        added = traits.take(orders[:, index])
        new_excess, new_loop = np.full_like(excess, np.inf), np.full_like(loop, np.inf)
        for start in range(pace.size - 1) if index else (0,):
            longer, larger = pace.prepend(loop, excess, added, stages - index, start)
            found = pareto_points(larger.reshape(rows, -1), longer.reshape(rows, -1), _LABELS)
            new_excess[:, :, start], new_loop[:, :, start] = found[:2]
        excess, loop = new_excess, new_loop
        if index:
            loop += pace.link_seconds(added, traits.take(orders[:, index - 1]))[:, None]
    times = pace.step_time(loop[:, :, 0], excess[:, :, 0]).min(axis=1)
    return np.where(np.isfinite(times), pace.microbatch_rate(times), 0.0)


def duals(rates: Mapping[tuple[int, ...], float], least: Floats) -> Floats:
    """The cheapest prices that none of some clusters is worth more than.

    Args:
        rates: of clusters, by their nodes.
        least: that each price is at least.
    """
    rows = [index for index, key in enumerate(rates) for _ in key]
    nodes = [node for key in rates for node in key]
    shape = (len(rates), len(least))
    matrix = sparse.csr_matrix((np.full(len(rows), -1.0), (rows, nodes)), shape=shape)
    result = optimize.linprog(
        np.ones(len(least)),
        A_ub=matrix,
        b_ub=-np.array(list(rates.values())),
        bounds=np.column_stack((least, np.full(len(least), np.inf))),
        method="highs",
    )
    return np.asarray(result.x)
