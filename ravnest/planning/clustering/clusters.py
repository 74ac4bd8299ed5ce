"""Nodes to clusters: how many, who is in which, and who is left over and why.

Few nodes (or few kinds of them): the best division there is (`exact`). Many: `pool`, with a proven
bound. Whatever is found is then cut along all legal cuts.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ravnest.errors import NotEnoughMemoryError, PlanningError
from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.clustering.laggards import Parting, without_laggards
from ravnest.planning.clustering.leftovers import reasons
from ravnest.planning.clustering.shortage import format_bytes, memory_shortage
from ravnest.planning.inputs.settings import DEFAULT_FLOPS, DEFAULT_LATENCY_S, PlanningSettings
from ravnest.planning.inputs.table import CostTable
from ravnest.planning.pools.pool import LargePool
from ravnest.planning.search.exact import Division, ExactSearch
from ravnest.planning.search.ordering import (
    EXACT_STATES,
    SEARCH_BOUNDARIES,
    Cluster,
    ClusterSearch,
    NodeClasses,
)

_NEAR = 0.999
"""Divisions so near the fastest count as equally fast, and the most alike clusters are taken."""

_PROVEN = 0.9
"""Of its bound: plans below it say that the bound is rough."""


@dataclass(frozen=True, slots=True)
class Formation:
    """Clusters, in order of their smallest node id, and the reason per node that has no part.

    Attributes:
        upper_bound: microbatches per second that no division has more of, by the closed form.
        is_optimal: the division is proven to be the best by the closed form.
        searched_rate: microbatches per second of what was found by the closed form, clusters that
            are left out for their part in averaging included.
        assumed: of nodes and settings, in words.
    """

    clusters: tuple[Cluster, ...]
    unused: dict[int, str]
    upper_bound: float = float("inf")
    is_optimal: bool = False
    searched_rate: float = 0.0
    assumed: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Microbatches per second of all clusters together, by the closed form."""
        return sum(cluster.rate for cluster in self.clusters)


def form_clusters(
    table: CostTable, nodes: Sequence[NodeSpec], settings: PlanningSettings
) -> Formation:
    """The clusters that promise the most samples per second within every node's memory.

    Of divisions within 0.1 % of the fastest the one whose clusters are most alike in speed is
    taken, then the one with the fewest clusters. With `settings.num_clusters` as many nodes are
    used as fit into so many clusters, and the slowest of these is made as fast as can be: clusters
    meet in averaging.

    Raises:
        NotEnoughMemoryError: no division fits.
        PlanningError: there is nothing to train, or there are fewer nodes than clusters asked for.
    """
    if table.max_stages == 0:
        raise PlanningError("the model has no parameter that requires a gradient; nothing to train")
    rated, assumed = _rated(nodes)
    settings = dataclasses.replace(settings, num_nodes=len(nodes))
    usable, unused = _usable(table, rated, settings)
    planner = _Planner(table, settings, usable)
    division, bound, is_optimal = planner.best(nodes)
    search = ClusterSearch(table, settings, division.averaged_as)
    clusters = tuple(search.refined(each) for each in division.clusters)
    searched = sum(cluster.rate for cluster in clusters)
    parting = Parting(clusters, {})
    if settings.num_clusters is None:
        parting = without_laggards(table, settings, clusters)
    unused |= parting.left_out
    unused |= reasons(search, parting.clusters, division.left_out, table.max_stages)
    return Formation(
        clusters=parting.clusters,
        unused=dict(sorted(unused.items())),
        upper_bound=max(bound, searched),
        is_optimal=is_optimal and not parting.left_out,
        searched_rate=searched,
        assumed=(*settings.assumed, *assumed, *planner.unproven(searched / bound)),
    )


class _Planner:
    """One search, by the size of the pool and what was asked for."""

    def __init__(
        self, table: CostTable, settings: PlanningSettings, usable: Sequence[NodeSpec]
    ) -> None:
        self._table, self._settings, self._usable = table, settings, usable
        self.is_small = NodeClasses(usable).num_states <= EXACT_STATES if usable else True

    def unproven(self, share: float) -> tuple[str, ...]:
        """In words that there may be a better plan, where a longer look could tell.

        Args:
            share: of the bound that the plan has.
        """
        settings = self._settings
        if self.is_small or settings.thorough or settings.num_clusters or share >= _PROVEN:
            return ()
        return (
            "that no plan is much better: the bound is a rough one; thorough=True looks longer, "
            "for a better plan and a closer bound",
        )

    def best(self, nodes: Sequence[NodeSpec]) -> tuple[Division, float, bool]:
        """The division, its bound, and whether it is proven; `nodes` are all, for errors."""
        wanted = self._settings.num_clusters
        if wanted is not None:
            self._check_number(wanted, len(nodes))
            given = self._of_number(wanted)
            if given is None:
                raise self._shortage(nodes, wanted)
            return given, self._bound(given.rate), False
        found, bound, is_proven = self._best_of_any_number()
        if found is not None:
            return found, bound, is_proven
        found = self._of_number(1)  # which knows how to leave out nodes until the rest fits
        if found is None:
            raise self._shortage(nodes, 1)
        return found, self._bound(found.rate), False

    def _best_of_any_number(self) -> tuple[Division | None, float, bool]:
        if not self._usable:
            return None, 0.0, False
        if not self.is_small:
            found, bound = LargePool(self._table, self._settings, self._usable).best()
            return found, bound, False
        divisions = ExactSearch(self._table, self._settings, self._usable, _NEAR).divisions()
        if not divisions:
            return None, 0.0, False
        best, fastest = _choice(divisions), max(each.rate for each in divisions)
        if self._table.last < SEARCH_BOUNDARIES and all(each.is_proven for each in divisions):
            return best, fastest, True
        return best, self._bound(fastest), False

    def _bound(self, rate: float) -> float:
        """A rate that no plan has more of, averaging charged as among two: more take longer."""
        return LargePool(self._table, self._settings, self._usable, averaged_as=2).bound(rate)

    def _of_number(self, number: int) -> Division | None:
        if self.is_small and self._usable:
            found = ExactSearch(self._table, self._settings, self._usable, 1.0).of_all(number)
            if found is not None:
                return found
        search = ClusterSearch(self._table, self._settings, number)
        found_all = [
            each
            for weight in (_speed, _memory)
            if (each := _dealt(search, self._usable, number, weight, self._table.max_stages))
        ]
        return max(found_all, key=lambda each: (-len(each.left_out), each.rate), default=None)

    def _check_number(self, wanted: int, num_nodes: int) -> None:
        num_usable = len(self._usable)
        if wanted > num_nodes or wanted > num_usable > 0:
            raise PlanningError(
                f"num_clusters={wanted}, but {num_usable} of {num_nodes} nodes can hold a stage; "
                "expected at least one node per cluster",
                hint=f"ask for {max(num_usable, 1)} clusters or fewer, or add nodes",
            )

    def _shortage(self, nodes: Sequence[NodeSpec], number: int) -> NotEnoughMemoryError:
        candidates = sorted(self._usable or nodes, key=lambda n: (-n.memory_bytes, n.node_id))
        max_stages = self._table.max_stages
        kept = candidates[: number * max_stages]
        return memory_shortage(
            MemoryModel(self._table, self._settings, is_averaged=number > 1),
            _dealt_out(kept, number, _memory, max_stages),
            nodes,
            fitting_number=next((n for n in range(number - 1, 0, -1) if self._of_number(n)), None),
        )


def _choice(found: Sequence[Division]) -> Division:
    fastest = max(division.rate for division in found)
    near = [division for division in found if division.rate >= _NEAR * fastest]
    return min(near, key=lambda d: (d.spread, len(d.clusters), -d.rate, len(d.left_out)))


def _rated(nodes: Sequence[NodeSpec]) -> tuple[list[NodeSpec], list[str]]:
    """Nodes with a speed each, and what was assumed.

    One that is not measured counts as the median of the others.
    """
    measured = [node.flops for node in nodes if node.flops is not None]
    default = statistics.median(measured) if measured else DEFAULT_FLOPS
    rated = [node if node.flops else dataclasses.replace(node, flops=default) for node in nodes]
    slow = [node.node_id for node in nodes if not node.flops]
    far = [node.node_id for node in nodes if node.latency_s is None]
    assumed = []
    if slow:
        source = "the median of the others" if measured else "no node has been measured"
        assumed.append(f"speed of {_listed(slow)}: {default / 1e9:.4g} GFLOP/s, {source}")
    if far:
        assumed.append(f"delay of the link of {_listed(far)}: {DEFAULT_LATENCY_S * 1e3:g} ms")
    return rated, assumed


def _listed(ids: Sequence[int]) -> str:
    names = ", ".join(str(node_id) for node_id in sorted(ids)[:8])
    more = f" and {len(ids) - 8} more" if len(ids) > 8 else ""
    return f"{'node' if len(ids) == 1 else 'nodes'} {names}{more}"


def _usable(
    table: CostTable, nodes: Sequence[NodeSpec], settings: PlanningSettings
) -> tuple[list[NodeSpec], dict[int, str]]:
    memory = MemoryModel(table, settings, is_averaged=False)
    least = {node.node_id: memory.on(node).smallest_stage_bytes() for node in nodes}
    usable = [node for node in nodes if node.memory_bytes >= least[node.node_id]]
    unused = {
        node.node_id: f"it has {format_bytes(node.memory_bytes)}, and the smallest stage needs "
        f"{format_bytes(least[node.node_id])}"
        for node in nodes
        if node.memory_bytes < least[node.node_id]
    }
    return usable, unused


def _dealt(
    search: ClusterSearch,
    nodes: Sequence[NodeSpec],
    number: int,
    weight: Callable[[NodeSpec], float],
    max_stages: int,
) -> Division | None:
    """So many clusters by dealing out: largest first to the least loaded (Graham 1969)."""
    ranked = sorted(nodes, key=lambda node: (-weight(node), node.node_id))
    kept, left_out = ranked[: number * max_stages], ranked[number * max_stages :]
    clusters = []
    for group in _dealt_out(kept, number, weight, max_stages):
        cluster, extra = _fitting(search, group)
        left_out += extra
        if cluster is None:
            return None
        clusters.append(cluster)
    clusters.sort(key=lambda cluster: min(node.node_id for node in cluster.nodes))
    return Division(tuple(clusters), tuple(left_out), averaged_as=number)


def _dealt_out(
    ranked: Sequence[NodeSpec], number: int, weight: Callable[[NodeSpec], float], max_stages: int
) -> list[list[NodeSpec]]:
    """Each node to the group that weighs least so far and has room for another stage."""
    groups: list[list[NodeSpec]] = [[] for _ in range(number)]
    totals = [0.0] * number
    for node in ranked:
        open_groups = [i for i in range(number) if len(groups[i]) < max_stages]
        lightest = min(open_groups, key=lambda i: (totals[i], i))
        groups[lightest].append(node)
        totals[lightest] += weight(node)
    return groups


def _fitting(
    search: ClusterSearch, group: Sequence[NodeSpec]
) -> tuple[Cluster | None, list[NodeSpec]]:
    """The cluster of a group, without its smallest nodes where it fits only without them."""
    left: list[NodeSpec] = sorted(group, key=lambda node: (-node.memory_bytes, node.node_id))
    left_out: list[NodeSpec] = []
    while left:
        cluster = search.best(left)
        if cluster is not None:
            return cluster, left_out
        left_out.append(left.pop())
    return None, []


def _speed(node: NodeSpec) -> float:
    return node.flops or DEFAULT_FLOPS


def _memory(node: NodeSpec) -> float:
    return float(node.memory_bytes)
