"""Why a node has no part in the plan, in words with numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ravnest.plan.model import NodeSpec
from ravnest.planning.clustering.shortage import format_bytes
from ravnest.planning.search.ordering import Cluster, ClusterSearch
from ravnest.planning.search.pace import Traits
from ravnest.planning.search.subsets import Arrangement, along

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
    told = {node.node_id: _reason(search, clusters, node, max_stages) for node in left_out[:_TOLD]}
    return told | {node.node_id: _IN_SHORT for node in left_out[_TOLD:]}


def _reason(
    search: ClusterSearch, clusters: Sequence[Cluster], node: NodeSpec, max_stages: int
) -> str:
    open_clusters = [cluster for cluster in clusters if len(cluster.nodes) < max_stages]
    if not open_clusters:
        return (
            f"the model can be cut into {max_stages} stages at most, and every cluster has as many"
        )
    found = _best_with(search, open_clusters, node)
    if found is None:
        return f"with its {format_bytes(node.memory_bytes)} no cut of the model fits its cluster"
    cluster, arrangement = found
    frequency = search.pace.frequency
    first = min(each.node_id for each in cluster.nodes)
    return (
        f"the cluster of node {first} takes {arrangement.step_s / frequency:.3g} s per microbatch "
        f"with it at best and {1 / cluster.rate:.3g} s without, and it cannot be one alone"
    )


def _best_with(
    search: ClusterSearch, clusters: Sequence[Cluster], node: NodeSpec
) -> tuple[Cluster, Arrangement] | None:
    """The cluster that suffers least from one more node, and how it then is."""
    best: tuple[float, Cluster, Arrangement] | None = None
    tried = 0
    for cluster in sorted(clusters, key=lambda each: (each.rate, each.nodes[0].node_id)):
        for place in range(len(cluster.nodes) + 1):
            order = (*cluster.nodes[:place], node, *cluster.nodes[place:])
            found = along(search.pace, Traits.of(order))
            tried += 1
            if found is not None:
                gain = float(search.pace.frequency / max(found.step_s, 1e-9)) - cluster.rate
                if best is None or gain > best[0]:
                    best = (gain, cluster, found)
        if tried >= _MOST_TRIED:
            break
    return None if best is None else (best[1], best[2])
