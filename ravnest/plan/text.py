"""The plan as people read it: one block per node, the clusters, the roles, who is left over."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ravnest.plan.model import Plan, StagePlan

_GAP = "\n\n\n"  # two blank lines


def describe(plan: Plan) -> str:
    """The text that clusterize prints, without a final newline.

    Per used node, in order of id, a block with its address, its rings (ring id to the first
    parameter of that ring) and its partners in the next cluster (address to the first parameter
    exchanged with it); then a line per cluster, a line per role, a line per unused node.
    """
    stages = sorted(plan.stages, key=lambda stage: stage.node_id)
    parts = [_block(plan, stage) for stage in stages]
    parts.append("\n".join(_chain(number, nodes) for number, nodes in enumerate(plan.clusters)))
    parts.append("\n".join(_role(plan, stage.node_id) for stage in stages))
    if plan.unused:
        parts.append("\n".join(f"Node({i}) unused: {plan.unused[i]}" for i in sorted(plan.unused)))
    return _GAP.join(parts)


def _block(plan: Plan, stage: StagePlan) -> str:
    rings = [ring for ring in plan.rings if ring.members[stage.cluster_id] == stage.node_id]
    ring_ids = {ring.ring_id: ring.first_tensor for ring in rings}
    next_cluster = (stage.cluster_id + 1) % len(plan.clusters)
    partners: dict[str, str] = {}
    if next_cluster != stage.cluster_id:
        for ring in rings:
            partners.setdefault(plan.node(ring.members[next_cluster]).address, ring.first_tensor)
    return "\n".join(
        (
            f"Node({stage.node_id}, Cluster({stage.cluster_id}))",
            f"self.IP({plan.node(stage.node_id).address})",
            f"Ring IDs({ring_ids})",
            f"Address2Param({partners})",
        )
    )


def _chain(number: int, nodes: tuple[int, ...]) -> str:
    return f"Cluster {number} : " + " -> ".join(f"Node({node})" for node in nodes)


def _role(plan: Plan, node_id: int) -> str:
    return f"Node({node_id}) -> {plan.role_of(node_id).value.capitalize()}"
