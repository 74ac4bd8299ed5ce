"""The order of the nodes inside one cluster: exact for few, a few sensible orders for many."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.plan.model import NodeSpec
from ravnest.planning.memory import MemoryModel
from ravnest.planning.settings import PlanningSettings
from ravnest.planning.stages import Cutting, StageTimes, cut_into_stages, slowest_stage
from ravnest.planning.table import CostTable

EXACT_NODES = 6
"""Up to so many nodes every order is tried: 720 at most."""

SEARCH_BOUNDARIES = (64, 256, 1024)
"""Boundaries a search looks at, more only where nothing fits; in the end all of them count."""

_Traits = tuple[int, float, float]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes from root to leaf, and how the graph is cut for them."""

    nodes: tuple[NodeSpec, ...]
    cutting: Cutting

    @property
    def rate(self) -> float:
        """Microbatches per second."""
        return 1.0 / max(self.cutting.slowest_s, 1e-12)


class ClusterSearch:
    """Finds the best order and cutting for sets of nodes, and remembers them.

    Nodes alike in memory, bandwidth and speed are interchangeable; they are then in order of id.
    """

    def __init__(self, table: CostTable, settings: PlanningSettings, *, is_averaged: bool) -> None:
        self._full = MemoryModel(table, settings, is_averaged)
        coarse = [number for number in SEARCH_BOUNDARIES if number < table.last]
        self._models = [*(self._full.thinned(number) for number in coarse), self._full]
        self._found: dict[tuple[_Traits, ...], tuple[tuple[int, ...], Cutting] | None] = {}

    def best(self, nodes: Sequence[NodeSpec]) -> Cluster | None:
        """The fastest cluster of all these nodes, or None when there is none.

        For up to `EXACT_NODES` nodes every order is tried, for more a few, along the coarsest
        choice of cuts on which any of them fits.
        """
        ranked = sorted(
            nodes, key=lambda node: (*(-trait for trait in _traits(node)), node.node_id)
        )
        key = tuple(_traits(node) for node in ranked)
        if key not in self._found:
            self._found[key] = self._search(ranked)
        found = self._found[key]
        if found is None:
            return None
        order, cutting = found
        return Cluster(tuple(ranked[i] for i in order), cutting)

    def refined(self, cluster: Cluster) -> Cluster:
        """The same order, cut along all legal cuts instead of the thinned ones."""
        cutting = cut_into_stages(StageTimes(self._full, cluster.nodes))
        assert cutting is not None, "what fits along some cuts fits along all"
        return Cluster(cluster.nodes, cutting)

    def _search(self, ranked: Sequence[NodeSpec]) -> tuple[tuple[int, ...], Cutting] | None:
        is_small = len(ranked) <= EXACT_NODES
        orders = list(_all_orders(ranked) if is_small else _few_orders(ranked))
        for memory in self._models:
            times = [StageTimes(memory, [ranked[i] for i in order]) for order in orders]
            possible = [i for i, each in enumerate(times) if each.can_fit()]
            if possible:
                best, cutting = _fastest([times[i] for i in possible])
                return orders[possible[best]], cutting
        return None


def _fastest(times: Sequence[StageTimes]) -> tuple[int, Cutting]:
    """Index and cutting of the best of these, each of which can fit; among equals the first."""
    least = np.inf
    slowest = []
    for each in times:
        slowest.append(slowest_stage(each, least))
        least = min(least, slowest[-1])
    tied = [i for i, seconds in enumerate(slowest) if seconds == least]
    cuttings = [(i, cut_into_stages(times[i])) for i in tied]
    return min(
        ((i, cutting) for i, cutting in cuttings if cutting is not None),
        key=lambda found: (found[1].rank, found[0]),
    )


def _traits(node: NodeSpec) -> _Traits:
    return node.memory_bytes, node.bandwidth_bps, node.flops or 0.0


def _all_orders(ranked: Sequence[NodeSpec]) -> Iterator[tuple[int, ...]]:
    """Every order, but only one of those that differ by swapping nodes that are alike."""
    seen: set[tuple[_Traits, ...]] = set()
    for order in itertools.permutations(range(len(ranked))):
        traits = tuple(_traits(ranked[i]) for i in order)
        if traits not in seen:
            seen.add(traits)
            yield order


def _few_orders(ranked: Sequence[NodeSpec]) -> Iterator[tuple[int, ...]]:
    """Descending memory (the first stages keep the most in flight), bandwidth, and speed."""
    seen: set[tuple[int, ...]] = set()
    for trait in range(3):
        order = tuple(sorted(range(len(ranked)), key=lambda i: -_traits(ranked[i])[trait]))
        if order not in seen:
            seen.add(order)
            yield order
