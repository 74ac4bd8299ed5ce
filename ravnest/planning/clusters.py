"""Nodes to clusters: how many, who is in which, and who is left over and why.

A search that is exact in no proven sense: for every number of clusters nodes are dealt out so that
speed, or memory, is balanced (largest first to the least loaded, Graham 1969), each cluster is
ordered and cut, and the number with the most samples per second wins.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ravnest.errors import NotEnoughMemoryError, PlanningError
from ravnest.plan.model import NodeSpec
from ravnest.planning.memory import MemoryModel
from ravnest.planning.ordering import Cluster, ClusterSearch
from ravnest.planning.settings import DEFAULT_FLOPS, PlanningSettings
from ravnest.planning.shortage import format_bytes, memory_shortage
from ravnest.planning.table import CostTable

_NEAR = 0.99  # formations within one percent of the fastest count as equally fast
_NUM_IMPROVED = 4  # formations that are looked at for nodes better left out


@dataclass(frozen=True, slots=True)
class Formation:
    """Clusters, in order of their smallest node id, and the reason per node that has no part."""

    clusters: tuple[Cluster, ...]
    unused: dict[int, str]

    @property
    def rate(self) -> float:
        """Microbatches per second of all clusters together."""
        return sum(cluster.rate for cluster in self.clusters)

    @property
    def spread(self) -> float:
        """How many times the fastest cluster is as fast as the slowest."""
        rates = [cluster.rate for cluster in self.clusters]
        return max(rates) / min(rates)


def form_clusters(
    table: CostTable, nodes: Sequence[NodeSpec], settings: PlanningSettings
) -> Formation:
    """The clusters that promise the most samples per second within every node's memory.

    Formations within one percent of the fastest count as equally fast; of these the one whose
    clusters are most alike in speed is taken, then the one with the fewest clusters. With
    `settings.num_clusters` the number is given and no node is left out for being slow.

    Raises:
        NotEnoughMemoryError: no formation fits.
        PlanningError: there is nothing to train, or there are fewer nodes than clusters asked for.
    """
    if table.max_stages == 0:
        raise PlanningError("the model has no parameter that requires a gradient; nothing to train")
    usable, unused = _usable(table, _rated(nodes), settings)
    best = _Planner(table, settings, usable).best(nodes)
    return Formation(best.clusters, dict(sorted((unused | best.unused).items())))


class _Planner:
    """One search over numbers of clusters; what it learns of single clusters serves all of them."""

    def __init__(
        self, table: CostTable, settings: PlanningSettings, usable: Sequence[NodeSpec]
    ) -> None:
        self._table = table
        self._settings = settings
        self._usable = usable
        self._alone = ClusterSearch(table, settings, is_averaged=False)
        self._averaged = ClusterSearch(table, settings, is_averaged=True)

    def best(self, nodes: Sequence[NodeSpec]) -> Formation:
        """The formation of the usable nodes; `nodes` are all of them, for the error message."""
        wanted = self._settings.num_clusters
        if wanted is None:
            found = self._any_number()
        else:
            self._check_number(wanted, len(nodes))
            found = self._formations(wanted)
        if not found:
            raise self._shortage(nodes, wanted or 1)
        best = _choice(found)
        search = self._search(len(best.clusters))
        return Formation(tuple(search.refined(each) for each in best.clusters), best.unused)

    def _any_number(self) -> list[Formation]:
        found: list[Formation] = []
        for number in range(1, len(self._usable) + 1):
            found += self._formations(number)
        found.sort(key=lambda formation: -formation.rate)
        improved = [
            _without_idlers(self._search(len(formation.clusters)), formation)
            for formation in found[:_NUM_IMPROVED]
        ]
        return improved + found

    def _formations(self, number: int) -> list[Formation]:
        return _formations(self._search(number), self._usable, number, self._table.max_stages)

    def _search(self, num_clusters: int) -> ClusterSearch:
        return self._alone if num_clusters == 1 else self._averaged

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
            fitting_number=next((n for n in range(number - 1, 0, -1) if self._formations(n)), None),
        )


def _choice(found: Sequence[Formation]) -> Formation:
    fastest = max(formation.rate for formation in found)
    near = [formation for formation in found if formation.rate >= _NEAR * fastest]
    return min(near, key=lambda f: (f.spread, len(f.clusters), -f.rate, len(f.unused)))


def _rated(nodes: Sequence[NodeSpec]) -> list[NodeSpec]:
    """Nodes with a speed each: one that is not measured counts as the median of the others."""
    measured = [node.flops for node in nodes if node.flops is not None]
    default = statistics.median(measured) if measured else DEFAULT_FLOPS
    return [node if node.flops else dataclasses.replace(node, flops=default) for node in nodes]


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


def _formations(
    search: ClusterSearch, nodes: Sequence[NodeSpec], number: int, max_stages: int
) -> list[Formation]:
    """At most two: dealt out by speed, and by memory."""
    found = []
    for weight in (_speed, _memory):
        ranked = sorted(nodes, key=lambda node: (-weight(node), node.node_id))
        kept, extra = ranked[: number * max_stages], ranked[number * max_stages :]
        unused = {
            node.node_id: f"the model can be cut into {max_stages} stages at most, and every "
            "cluster has as many"
            for node in extra
        }
        clusters = []
        for group in _dealt_out(kept, number, weight, max_stages):
            cluster, left_out = _fitting(search, group)
            unused |= left_out
            if cluster is None:
                break
            clusters.append(cluster)
        else:
            clusters.sort(key=lambda cluster: min(node.node_id for node in cluster.nodes))
            found.append(Formation(tuple(clusters), unused))
    return found


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
) -> tuple[Cluster | None, dict[int, str]]:
    """The cluster of a group, without its smallest nodes where it fits only without them."""
    left: list[NodeSpec] = sorted(group, key=lambda node: (-node.memory_bytes, node.node_id))
    unused: dict[int, str] = {}
    while left:
        cluster = search.best(left)
        if cluster is not None:
            return cluster, unused
        node = left.pop()
        unused[node.node_id] = (
            f"with its {format_bytes(node.memory_bytes)} no cut of the model fits its cluster"
        )
    return None, {}


def _without_idlers(search: ClusterSearch, formation: Formation) -> Formation:
    """The formation without the nodes that make their cluster slower, or no faster."""
    clusters, unused = [], dict(formation.unused)
    for cluster in formation.clusters:
        current = cluster
        while (smaller := _one_less(search, current)) is not None:
            (gone,) = set(current.nodes) - set(smaller.nodes)
            unused[gone.node_id] = (
                f"its cluster takes {current.cutting.slowest_s:.3g} s per microbatch with it and "
                f"{smaller.cutting.slowest_s:.3g} s without"
            )
            current = smaller
        clusters.append(current)
    return Formation(tuple(clusters), unused)


def _one_less(search: ClusterSearch, cluster: Cluster) -> Cluster | None:
    """The best cluster with one node less that is as fast; only the weakest nodes are tried."""
    if len(cluster.nodes) == 1:
        return None
    weakest = {min(cluster.nodes, key=_weakness(trait)) for trait in (_speed, _bandwidth, _memory)}
    found = []
    for node in sorted(weakest, key=lambda node: node.node_id):
        smaller = search.best([other for other in cluster.nodes if other != node])
        if smaller is not None and smaller.rate >= cluster.rate:
            found.append(smaller)
    return max(found, key=lambda smaller: smaller.rate, default=None)


def _weakness(trait: Callable[[NodeSpec], float]) -> Callable[[NodeSpec], tuple[float, int]]:
    return lambda node: (trait(node), -node.node_id)


def _speed(node: NodeSpec) -> float:
    return node.flops or DEFAULT_FLOPS


def _memory(node: NodeSpec) -> float:
    return float(node.memory_bytes)


def _bandwidth(node: NodeSpec) -> float:
    return node.bandwidth_bps
