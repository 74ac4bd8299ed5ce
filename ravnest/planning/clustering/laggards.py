"""Clusters whose links would keep all others waiting in every averaging round.

Plans are searched with each cluster charged for its own part in averaging, which makes clusters
independent of each other. In truth all wait for the slowest. So in the end whole clusters are left
out, slowest in averaging first, as long as that makes the rest faster by more than they add.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import CostTable
from ravnest.planning.search.ordering import Cluster

_BITS_PER_BYTE = 8
_WORTHWHILE = 1.005


@dataclass(frozen=True, slots=True)
class Parting:
    """Who stays, and why the others go.

    Attributes:
        left_out: reason per node id.
    """

    clusters: tuple[Cluster, ...]
    left_out: dict[int, str]


def without_laggards(
    table: CostTable, settings: PlanningSettings, clusters: Sequence[Cluster]
) -> Parting:
    """The clusters with the highest rate of all, everybody waiting for the slowest round."""
    ranked = sorted(clusters, key=lambda each: (_round_seconds(table, each), each.nodes[0].node_id))
    round_s = [_round_seconds(table, each) for each in ranked]
    totals = [
        _rate_together(ranked[:number], round_s[:number], settings)
        for number in range(1, len(ranked) + 1)
    ]
    best = len(ranked)
    for number in range(len(ranked) - 1, 0, -1):
        if totals[number - 1] > totals[best - 1] * _WORTHWHILE:
            best = number
    kept = ranked[:best]
    share = 2 * (len(ranked) - 1) / len(ranked)
    left_out = {
        node.node_id: (
            f"its cluster would make every averaging round take {share * seconds:.3g} s, and "
            f"without such clusters it takes {share * round_s[best - 1]:.3g} s"
        )
        for cluster, seconds in zip(ranked[best:], round_s[best:], strict=True)
        for node in cluster.nodes
    }
    kept.sort(key=lambda cluster: min(node.node_id for node in cluster.nodes))
    return Parting(tuple(kept), left_out)


def _round_seconds(table: CostTable, cluster: Cluster) -> float:
    """Seconds to send what its slowest node holds once."""
    cuts = np.searchsorted(table.positions, cluster.cutting.cuts).tolist()
    stored = table.trained_bytes + table.fixed_bytes
    return max(
        float(stored[end] - stored[start]) * _BITS_PER_BYTE / node.bandwidth_bps
        for node, (start, end) in zip(cluster.nodes, itertools.pairwise(cuts), strict=True)
    )


def _rate_together(
    clusters: Sequence[Cluster], round_s: Sequence[float], settings: PlanningSettings
) -> float:
    """Microbatches per second when all wait for the slowest; `rate` has each one's own share."""
    number = len(clusters)
    per_step = 2 * (number - 1) / number / settings.steps_per_round
    slowest = max(round_s)
    frequency = settings.frequency
    return sum(
        frequency / (frequency / cluster.rate + per_step * (slowest - own))
        for cluster, own in zip(clusters, round_s, strict=True)
    )
