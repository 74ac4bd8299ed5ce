"""Who averages what: one ring per set of nodes, one of each cluster, that hold the same tensors.

Clusters may be cut differently. A node then takes part in several rings: parallel multi-ring
all-reduce, as the Ravnest paper has it (Menon et al., arXiv 2401.01728).
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from ravnest.capture.costs import ParameterCost
from ravnest.plan.parts import RingPlan


def form_rings(
    stored: Sequence[ParameterCost],
    clusters: Sequence[Sequence[int]],
    cuts: Sequence[Sequence[int]],
) -> tuple[RingPlan, ...]:
    """Groups every stored tensor by its owners over the clusters.

    Args:
        stored: in the model's order.
        clusters: node ids of each cluster, from root to leaf.
        cuts: positions per cluster, both ends included; stage k owns `cuts[k]` to `cuts[k + 1]`.

    Returns:
        Rings numbered in the order of their first tensor, members in order of cluster.
    """
    tensors: dict[tuple[int, ...], list[ParameterCost]] = {}
    for tensor in stored:
        owners = tuple(
            cluster[owner_of(tensor.position, cut)]
            for cluster, cut in zip(clusters, cuts, strict=True)
        )
        tensors.setdefault(owners, []).append(tensor)
    return tuple(
        RingPlan(
            ring_id=ring_id,
            members=members,
            parameters=tuple(tensor.name for tensor in held if tensor.is_parameter),
            buffers=tuple(tensor.name for tensor in held if not tensor.is_parameter),
        )
        for ring_id, (members, held) in enumerate(tensors.items())
    )


def owner_of(position: int, cuts: Sequence[int]) -> int:
    """Index of the stage whose half-open range of positions has this one."""
    return bisect.bisect_right(cuts, position) - 1
