"""The plan as people read it: one block per node, the clusters, the roles, who is left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ravnest.plan.parts import NodeSpec, RingPlan, StagePlan, role_at

_GAP = "\n\n\n"  # two blank lines


def describe(
    nodes: Sequence[NodeSpec],
    clusters: Sequence[tuple[int, ...]],
    stages: Sequence[StagePlan],
    rings: Sequence[RingPlan],
    unused: Mapping[int, str],
) -> str:
    """The text that clusterize prints, without a final newline; arguments as in `Plan`.

    Per used node, in order of id, a block with its address, its rings (ring id to the first
    parameter of that ring) and its partners in the next cluster (address to the first parameter
    exchanged with it); then a line per cluster, a line per role, a line per unused node.
    """
    addresses = {node.node_id: node.address for node in nodes}
    stages = sorted(stages, key=lambda stage: stage.node_id)
    parts = [_block(stage, addresses, rings) for stage in stages]
    parts.append("\n".join(_chain(number, members) for number, members in enumerate(clusters)))
    parts.append("\n".join(_role(stage, len(clusters[stage.cluster_id])) for stage in stages))
    if unused:
        parts.append("\n".join(f"Node({i}) unused: {unused[i]}" for i in sorted(unused)))
    return _GAP.join(parts)


def _block(stage: StagePlan, addresses: Mapping[int, str], rings: Sequence[RingPlan]) -> str:
    own = [ring for ring in rings if ring.members[stage.cluster_id] == stage.node_id]
    ring_ids = {ring.ring_id: ring.first_tensor for ring in own}
    partners: dict[str, str] = {}
    for ring in own:
        next_member = ring.members[(stage.cluster_id + 1) % len(ring.members)]
        if next_member != stage.node_id:
            partners.setdefault(addresses[next_member], ring.first_tensor)
    return "\n".join(
        (
            f"Node({stage.node_id}, Cluster({stage.cluster_id}))",
            f"self.IP({addresses[stage.node_id]})",
            f"Ring IDs({ring_ids})",
            f"Address2Param({partners})",
        )
    )


def _chain(number: int, nodes: Sequence[int]) -> str:
    return f"Cluster {number} : " + " -> ".join(f"Node({node})" for node in nodes)


def _role(stage: StagePlan, num_stages: int) -> str:
    return f"Node({stage.node_id}) -> {role_at(stage.index, num_stages).value.capitalize()}"
