"""The best cluster of given nodes: their order and the cuts, exact for few nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import CostTable
from ravnest.planning.search.pace import Pace, Traits, is_accelerated
from ravnest.planning.search.stages import Cutting, StageTimes, cut_into_stages
from ravnest.planning.search.subsets import Arrangement, along, best_arrangement, step_time_of

EXACT_STATES = 12 * 2**12
"""So many pairs of a subset and its first node are looked at to find the best order: 12 nodes."""

SEARCH_BOUNDARIES = 48
"""Boundaries a search looks at; more where nothing fits along these, and in the end all."""

_FINER = (256, 1024)
_REFINED = 160  # boundaries around the cuts that were found

_Key = tuple[float, float, float, float, bool]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes from root to leaf, and how the graph is cut for them.

    Attributes:
        rate: microbatches per second by the closed form, averaging included.
    """

    nodes: tuple[NodeSpec, ...]
    cutting: Cutting
    rate: float


class NodeClasses:
    """Nodes sorted into classes of alike ones, fastest first; inside a class in order of id."""

    def __init__(self, nodes: Sequence[NodeSpec]) -> None:
        members: dict[_Key, list[NodeSpec]] = {}
        for node in sorted(nodes, key=lambda node: (*(-each for each in _key(node)), node.node_id)):
            members.setdefault(_key(node), []).append(node)
        self.members = list(members.values())
        self.counts = [len(each) for each in self.members]
        self.traits = Traits.of([each[0] for each in self.members])

    @property
    def num_states(self) -> int:
        """Pairs of a subset and its first node."""
        return math.prod(count + 1 for count in self.counts) * len(self.counts)

    def dealt_out(self, orders: Sequence[Sequence[int]]) -> list[tuple[NodeSpec, ...]]:
        """Nodes for clusters given as orders of classes; members of a class go around."""
        places: list[list[NodeSpec | None]] = [[None] * len(order) for order in orders]
        for index, members in enumerate(self.members):
            wanted = [[k for k, each in enumerate(order) if each == index] for order in orders]
            queue = iter(members)
            for turn in range(max(map(len, wanted), default=0)):
                for cluster, slots in enumerate(wanted):
                    if turn < len(slots):
                        places[cluster][slots[turn]] = next(queue)
        return [tuple(node for node in place if node is not None) for place in places]


class ClusterSearch:
    """Finds the best order and cuts for sets of nodes, along thinned cuts.

    Args:
        num_clusters: clusters that average with each other, this one included.
        boundaries: how many boundaries are looked at.
    """

    def __init__(
        self,
        table: CostTable,
        settings: PlanningSettings,
        num_clusters: int,
        boundaries: int = SEARCH_BOUNDARIES,
    ) -> None:
        self.full = MemoryModel(table, settings, is_averaged=num_clusters > 1)
        self.num_clusters = num_clusters
        self.pace = Pace(self.full.thinned(boundaries), num_clusters)

    def best(self, nodes: Sequence[NodeSpec]) -> Cluster | None:
        """The fastest cluster of all these nodes, or None when there is none.

        The best of all orders for few nodes (or few kinds of them), of some for many.
        """
        classes = NodeClasses(nodes)
        if classes.num_states <= EXACT_STATES:
            found = best_arrangement(self.pace, classes.traits, classes.counts)
            if found is not None:
                (order,) = classes.dealt_out([found.order])
                return self.cluster(order, found)
        else:
            cluster = self._along_some_orders(nodes)
            if cluster is not None:
                return cluster
        return self._along_finer_cuts(nodes)

    def cluster(self, nodes: Sequence[NodeSpec], found: Arrangement) -> Cluster:
        """A found arrangement with these nodes in its places."""
        times = StageTimes(self.pace.memory, nodes)
        rate = float(self.pace.microbatch_rate(np.array(found.step_s)))
        return Cluster(tuple(nodes), times.cutting(found.boundaries), rate)

    def refined(self, cluster: Cluster) -> Cluster:
        """The same order, cut where it is best among all legal cuts near those it has."""
        table = self.full.table
        cuts = np.searchsorted(table.positions, cluster.cutting.cuts)
        if self.pace.size > table.last:
            return cluster
        near = table.near(cuts.tolist(), _REFINED)
        memory = MemoryModel(near, self._settings(cluster.nodes), self.full.is_averaged)
        pace = Pace(memory, self.num_clusters)
        found = along(pace, Traits.of(cluster.nodes))
        if found is None:
            return cluster
        rate = float(pace.microbatch_rate(np.array(found.step_s)))
        if rate < cluster.rate:
            return cluster
        times = StageTimes(memory, cluster.nodes)
        return Cluster(cluster.nodes, times.cutting(found.boundaries), rate)

    def _settings(self, nodes: Sequence[NodeSpec]) -> PlanningSettings:
        """For a cluster whose length is known."""
        return replace(self.full.settings, num_nodes=len(nodes))

    def _along_some_orders(self, nodes: Sequence[NodeSpec]) -> Cluster | None:
        found = []
        for order in few_orders(nodes):
            arrangement = along(self.pace, Traits.of(order))
            if arrangement is not None:
                found.append(self.cluster(order, arrangement))
        return max(found, key=lambda cluster: cluster.rate, default=None)

    def _along_finer_cuts(self, nodes: Sequence[NodeSpec]) -> Cluster | None:
        """For nodes that only just fit: the fastest slowest stage along more cuts."""
        for number in (*_FINER, self.full.table.last + 1):
            memory = self.full.thinned(number)
            if memory.table.last < self.pace.size:
                continue
            for order in few_orders(nodes):
                times = StageTimes(memory, order)
                cutting = cut_into_stages(times) if times.can_fit() else None
                if cutting is not None:
                    return self._timed(memory, order, cutting)
        return None

    def _timed(self, memory: MemoryModel, order: Sequence[NodeSpec], cutting: Cutting) -> Cluster:
        cuts = np.searchsorted(memory.table.positions, cutting.cuts)
        few = MemoryModel(memory.table.at(cuts), self._settings(order), memory.is_averaged)
        pace = Pace(few, self.num_clusters)
        step_s = step_time_of(pace, Traits.of(order), range(len(cuts)))
        return Cluster(tuple(order), cutting, float(pace.microbatch_rate(np.array(step_s))))


def few_orders(nodes: Sequence[NodeSpec]) -> Iterator[tuple[NodeSpec, ...]]:
    """Descending memory (the first stages keep the most in flight), bandwidth, and speed."""
    seen: set[tuple[int, ...]] = set()
    for trait in range(3):
        order = sorted(nodes, key=lambda node: (-_key(node)[trait], node.node_id))
        ids = tuple(node.node_id for node in order)
        if ids not in seen:
            seen.add(ids)
            yield tuple(order)


def _key(node: NodeSpec) -> _Key:
    latency = -1.0 if node.latency_s is None else node.latency_s
    speed, memory = node.flops or 0.0, float(node.memory_bytes)
    return memory, node.bandwidth_bps, speed, -latency, is_accelerated(node)
