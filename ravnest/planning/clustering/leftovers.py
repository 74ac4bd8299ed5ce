"""Why a node has no part in the plan, in words with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.plan.parts import NodeSpec
from ravnest.planning.clustering.shortage import format_bytes
from ravnest.planning.pools.columns import rates_of
from ravnest.planning.search.ordering import Cluster, ClusterSearch
from ravnest.planning.search.pace import Traits

_TOLD = 12  # nodes that get numbers
_IN_SHORT = "no cluster that was found would be faster with it, and it cannot be one alone"
_MOST_TRIED = 24  # pairs of a node and a place in a cluster that are timed per node


def reasons(
    search: ClusterSearch,
    clusters: Sequence[Cluster],
    left_out: Sequence[NodeSpec],
    max_stages: int,
) -> dict[int, str]:
    """A sentence per node that could hold a stage and is left out."""
    if not (told := left_out[:_TOLD]):
        return {}
    short = {node.node_id: _IN_SHORT for node in left_out}
    open_clusters = [cluster for cluster in clusters if len(cluster.nodes) < max_stages]
    if not open_clusters:
        why = (
            f"the model can be cut into {max_stages} stages at most, and every cluster has as many"
        )
        return short | {node.node_id: why for node in told}
    found = _best_with(search, open_clusters, told)
    return short | {node.node_id: _reason(node, found.get(node.node_id)) for node in told}


def _reason(node: NodeSpec, found: _Joined | None) -> str:
    if found is None:
        return f"with its {format_bytes(node.memory_bytes)} no cut of the model fits its cluster"
    first = min(each.node_id for each in found.cluster.nodes)
    return (
        f"the cluster of node {first} takes {1 / found.rate:.3g} s per microbatch "
        f"with it at best and {1 / found.cluster.rate:.3g} s without, and it cannot be one alone"
    )


@dataclass(frozen=True, slots=True)
class _Joined:
    """A cluster, and its microbatches per second with one more node."""

    cluster: Cluster
    rate: float

    @property
    def gain(self) -> float:
        return self.rate - self.cluster.rate


def _best_with(
    search: ClusterSearch, clusters: Sequence[Cluster], nodes: Sequence[NodeSpec]
) -> dict[int, _Joined]:
    """By node id the cluster that suffers least from one more node."""
    slowest = sorted(clusters, key=lambda each: (each.rate, each.nodes[0].node_id))
    places = [(cluster, at) for cluster in slowest for at in range(len(cluster.nodes) + 1)]
    by_size: dict[int, list[tuple[Cluster, int]]] = {}
    for cluster, at in places[:_MOST_TRIED]:
        by_size.setdefault(len(cluster.nodes), []).append((cluster, at))
    best: dict[int, _Joined] = {}
    for size, same in sorted(by_size.items()):
        tried = [(*each, node) for node in nodes for each in same]
        orders = [(*c.nodes[:at], node, *c.nodes[at:]) for c, at, node in tried]
        rows = np.arange(len(orders) * (size + 1)).reshape(len(orders), size + 1)
        traits = Traits.of([each for order in orders for each in order])
        rates = rates_of(search.pace, traits, rows).tolist()
        for (cluster, _, node), rate in zip(tried, rates, strict=True):
            joined = _Joined(cluster, rate)
            known = best.get(node.node_id)
            if rate > 0 and (known is None or joined.gain > known.gain):
                best[node.node_id] = joined
    return best
