"""From a large pool to a division along thinned cuts, and a bound for all cuts."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np

from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import Bools, CostTable, Floats, Ints
from ravnest.planning.pools.alike import dealt
from ravnest.planning.pools.columns import Columns
from ravnest.planning.pools.diving import LONG_DIVE, SHORT_DIVE, whole_clusters
from ravnest.planning.pools.large import (
    COLLECTING,
    COLLECTING_FAST,
    MOST_NEEDED,
    PROVING,
    PROVING_FEW,
    QUICK,
    Pool,
    PoolSearch,
    fastest_cluster,
)
from ravnest.planning.pools.prices import Pricing
from ravnest.planning.pools.reach import Reach
from ravnest.planning.pools.repeated import NEAR, RepeatedSearch
from ravnest.planning.pools.windowed import WindowEffort, search_pool, upper_bound
from ravnest.planning.search.exact import Division
from ravnest.planning.search.ordering import Cluster, ClusterSearch
from ravnest.planning.search.pace import Pace, Traits
from ravnest.planning.search.subsets import along

BOUNDARIES = 27
"""Boundaries that the search in a large pool looks at, and the bound of very large ones."""

SLICES = 41
"""Boundaries, or slices of the graph between them, that searches and bounds with more time do."""

FEW = 100
"""Nodes up to which clusters are looked for one by one, in larger pools in parts of no more."""

_MOST_USED = 0.75
"""Of what all nodes compute: where short clusters leave more unused, longer ones are needed."""

_PROVEN_WITH_EASE = 60
"""Nodes up to which looking at very many clusters may end in a proof."""

MOST_TIGHT = 400
"""Nodes up to which the bound of larger pools is as tight as it can be made."""

MANY = 10**6
"""Clusters that averaging is charged for: a ring of many sends its bytes twice a round.

It is what the clusters of a large pool nearly come to, and with it each cluster's rate is its own.
"""

MOST_STAGES = 64
"""Clusters of more stages are not thought of when a pool is bounded."""


class LargePool:
    """A pool too large for `exact`.

    Args:
        averaged_as: clusters that averaging is charged for.
    """

    def __init__(
        self,
        table: CostTable,
        settings: PlanningSettings,
        nodes: Sequence[NodeSpec],
        averaged_as: int = MANY,
    ) -> None:
        self._number = averaged_as
        self._table, self._settings = table, settings
        self._nodes = sorted(nodes, key=lambda node: node.node_id)
        self._traits = Traits.of(self._nodes)
        self._effort = WindowEffort.for_nodes(len(self._nodes))

    def best(self) -> tuple[Division | None, float]:
        """The division, None where no cluster was found, and a rate that no plan has more of."""
        several = self._search(self._number)
        found = self._division(several.clusters, self._number)
        rate = 0.0 if found is None else found.rate
        if self._fastest_single > rate:
            fastest = self._search(1).fastest
            alone = self._division([] if fastest is None else [fastest], 1)
            if alone is not None and alone.rate > rate:
                found, rate = alone, alone.rate
        return found, self._within(rate, several.bound)

    def bound(self, rate: float) -> float:
        """A rate that no plan has more of, when one with a rate is known."""
        return self._within(rate, self._search(self._number).bound)

    def _within(self, rate: float, bound: float) -> float:
        return max(rate, min(max(bound, self._fastest_single), self._total_speed()))

    def _search(self, number: int) -> Pool:
        """One by one, in parts where nodes are many.

        By windows too for a proof, or where long clusters are needed: those are not looked at one
        by one without the time for a proof.
        """
        thorough, several, parts = self._settings.thorough, None, None
        if len(self._nodes) <= FEW:
            several = self._one_by_one(number)
        elif (parts := self._in_parts(number)) is not None and not thorough:
            chosen = whole_clusters(parts, SHORT_DIVE)
            several = Pool(chosen, parts.fastest, np.inf, is_proven=False)
        if several is not None:
            is_good = self._used(several) >= _MOST_USED
            if several.is_proven or (is_good and not thorough):
                return several
        return self._by_windows(number, several, parts)

    def _used(self, pool: Pool) -> float:
        """Share of all that nodes compute, of those that are in clusters."""
        nodes = [node for cluster in pool.clusters for node in cluster]
        return float(self._traits.flops[nodes].sum() / self._traits.flops.sum())

    def _by_windows(self, number: int, several: Pool | None, parts: Columns | None) -> Pool:
        """Also out of what was found otherwise, and with a closer bound when that is asked for."""
        pace = Pace(self._memory(number).thinned(BOUNDARIES), number)
        priced = search_pool(pace, self._traits, self._effort)
        pricing = Pricing(self._loose(number), self._traits, knows_triples=self._is_tight)
        bound = upper_bound(Reach(pricing), priced.prices, self._effort.windows)
        found = priced.columns
        if parts is not None:
            parts.add(order for order, _ in found.found.values())
            found = parts
        known = Pool(whole_clusters(found, LONG_DIVE), found.fastest, bound, is_proven=False)
        if several is not None:
            known = self._better(known, several, number)
        if not self._settings.thorough or priced.fewest_stages > MOST_NEEDED:
            return known
        if self._rate_of(known, number) >= NEAR * known.bound:
            return known
        return self._repeated(known, found, number)

    def _repeated(self, known: Pool, found: Columns, number: int) -> Pool:
        """With a bound by clusters that may take a node twice, and what it found on the way."""
        loose = self._loose(number, SLICES)
        search = RepeatedSearch(loose, self._traits, found)
        bound = min(known.bound, search.run(self._rate_of(known, number)))
        if not self._is_tight:  # whole clusters take long, and come to hardly more
            return dataclasses.replace(known, bound=bound)
        again = Pool(whole_clusters(found, LONG_DIVE), found.fastest, bound, is_proven=False)
        return self._better(known, again, number)

    def _better(self, one: Pool, other: Pool, number: int) -> Pool:
        """That of the higher rate, with the lower bound of both."""
        better = max((one, other), key=lambda each: self._rate_of(each, number))
        return dataclasses.replace(better, bound=min(one.bound, other.bound))

    def _rate_of(self, pool: Pool, number: int) -> float:
        found = self._division(pool.clusters, number)
        return 0.0 if found is None else found.rate

    def _one_by_one(self, number: int) -> Pool:
        look = QUICK
        if self._settings.thorough:
            look = PROVING_FEW if len(self._nodes) <= _PROVEN_WITH_EASE else PROVING
        return PoolSearch(*self._paces(number), self._traits, look).run()

    def _in_parts(self, number: int) -> Columns | None:
        """Clusters of nodes of one part each; None where too many would have to be looked at."""
        look = COLLECTING if self._is_tight or self._settings.thorough else COLLECTING_FAST
        paces = self._paces(number)
        found = Columns(paces[0], self._traits)
        for part in dealt(self._traits, -(-len(self._nodes) // FEW)):
            columns, _ = PoolSearch(*paces, self._traits.take(part), look).collected()
            if columns is None:
                return None
            for order, rate in columns.found.values():
                found.add_rated(tuple(part[list(order)].tolist()), rate)
        return found

    def _paces(self, number: int) -> tuple[Pace, Pace, Pace]:
        """Along the cuts that clusters may have, along fewer, and a bound for all."""
        memory, loose = self._memory(number), self._loose(number, SLICES)
        pace = loose if self._table.last < SLICES else Pace(memory.thinned(SLICES), number)
        return pace, Pace(memory.thinned(BOUNDARIES), number), loose

    @functools.cached_property
    def _fastest_single(self) -> float:
        """A rate that no plan of one cluster has more of, which averages with none."""
        pricing = Pricing(self._loose(1), self._traits, knows_triples=False)
        return fastest_cluster(Reach(pricing))

    def _total_speed(self) -> float:
        return float(self._traits.flops.sum() / max(float(self._table.work[-1]), 1e-300))

    def _memory(self, number: int) -> MemoryModel:
        return MemoryModel(self._table, self._settings, is_averaged=number > 1)

    def _loose(self, number: int, num_slices: int | None = None) -> Pace:
        """For all cuts: along them, or bounded from below where they are many."""
        memory = self._memory(number)
        num_slices = num_slices or (SLICES if self._is_tight else BOUNDARIES)
        if self._table.last < num_slices:
            return Pace(memory, number)
        return LooseBoundaries(memory, number, num_slices)

    @property
    def _is_tight(self) -> bool:
        """Whether there is time for a bound that looks at more cuts, and at all triples."""
        return len(self._nodes) <= MOST_TIGHT

    def _division(self, orders: Sequence[tuple[int, ...]], number: int) -> Division | None:
        if not orders:
            return None
        search = ClusterSearch(self._table, self._settings, number, SLICES)
        clusters: list[Cluster] = []
        used: set[int] = set()
        for order in orders:
            found = along(search.pace, self._traits.take(np.array(order)))
            if found is not None:
                clusters.append(search.cluster([self._nodes[index] for index in order], found))
                used.update(order)
        if not clusters:
            return None
        clusters.sort(key=lambda cluster: min(node.node_id for node in cluster.nodes))
        left_out = tuple(node for index, node in enumerate(self._nodes) if index not in used)
        return Division(tuple(clusters), left_out, averaged_as=number)


class LooseBoundaries(Pace):
    """Bounds stages whose cuts lie anywhere in slices of the graph from below.

    A stage from slice i to slice j computes at least what is between both slices, holds at least
    what is there and what the least cut of each slice adds, and sends at least what crosses the
    least cut.
    """

    def __init__(self, memory: MemoryModel, num_clusters: int, num_slices: int) -> None:
        table = memory.table
        inner = np.linspace(1, table.last, num_slices - 1).round().astype(np.int64)
        slices = [(0, 0), *itertools.pairwise(inner.tolist()), (table.last, table.last)]
        self._low: Ints = np.array([low for low, _ in slices])
        self._high: Ints = np.array([max(low, high - 1) for low, high in slices])
        self._high[-1] = table.last
        self._full = memory
        super().__init__(
            MemoryModel(table.at(self._low), memory.settings, memory.is_averaged), num_clusters
        )
        end, start = self._low[None, :], self._high[:, None]
        self.work = np.maximum(table.work[end] - table.work[start], 0.0)
        trained = np.maximum(table.trained_bytes[end] - table.trained_bytes[start], 0)
        fixed = np.maximum(table.fixed_bytes[end] - table.fixed_bytes[start], 0)
        self._set_per_step(trained, fixed)
        inside = self._least(table.forward_bytes.astype(np.float64))
        outside = self._least(table.backward_bytes.astype(np.float64))
        ends = np.isin(np.arange(self.size), (0, self.size - 1))
        self.activation_bytes = np.where(ends, 0.0, inside * memory.settings.activation_ratio)
        self.gradient_bytes = np.where(ends, 0.0, outside * memory.settings.gradient_ratio)
        self._set_passing_bytes()
        trains = table.num_trained[self._high][None, :] > table.num_trained[self._low][:, None]
        self.is_stage = trains & self._in_order()

    @property
    def most_stages(self) -> int:
        """Stages that a cluster has at most."""
        return min(self._full.table.last, MOST_STAGES)

    def _in_order(self) -> Bools:
        """Starts before ends; both may lie in one slice, but for those that are one boundary."""
        start, end = np.arange(self.size)[:, None], np.arange(self.size)[None, :]
        found: Bools = (start < end) | ((start == end) & (start > 0) & (start < self.size - 1))
        return found

    def _least(self, values: Floats) -> Floats:
        """The least value in each slice."""
        pairs = zip(self._low.tolist(), self._high.tolist(), strict=True)
        return np.array([values[low : high + 1].min() for low, high in pairs])

    def _stage_bytes(self, memory: MemoryModel, in_flight: int) -> Floats:
        whole = dataclasses.replace(self._full, on_accelerator=memory.on_accelerator)
        at_end, at_start = whole.parts(1, in_flight + 1)
        root_end, root_start = whole.parts(0, in_flight)
        needed = self._least(at_start.astype(np.float64))[:, None] + self._least(
            at_end.astype(np.float64)
        )
        needed[0] = float(root_start[0]) + self._least(root_end.astype(np.float64))
        return needed
