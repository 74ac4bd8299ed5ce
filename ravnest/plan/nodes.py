"""What each node needs of the plan: its neighbours, its rings, and where to reach them."""

from __future__ import annotations

from ravnest.config.addresses import dialable
from ravnest.plan.dealing import deal
from ravnest.plan.model import NodePlan, Plan
from ravnest.plan.parts import (
    NodeSpec,
    PeerSpec,
    RingMembership,
    RingPlan,
    SharedParameter,
    StagePlan,
)
from ravnest.plan.prediction import LinkCompression, StagePrediction


def node_plans(plan: Plan) -> tuple[NodePlan, ...]:
    """The node plans of a sealed plan, one per used node in order of id, not yet sealed."""
    stages = sorted(plan.stages, key=lambda stage: stage.node_id)
    return tuple(_node_plan(plan, stage) for stage in stages)


def _node_plan(plan: Plan, stage: StagePlan) -> NodePlan:
    node = plan.node(stage.node_id)
    predicted = _predicted(plan, stage.node_id)
    cluster = plan.clusters[stage.cluster_id]
    before = cluster[stage.index - 1] if stage.index > 0 else None
    after = cluster[stage.index + 1] if stage.index + 1 < len(cluster) else None
    rings = tuple(
        _membership(ring, stage.cluster_id)
        for ring in plan.rings
        if ring.members[stage.cluster_id] == node.node_id
    )
    neighbours = {before, after} - {None}
    if after is None or before is None:
        neighbours |= {cluster[0], cluster[-1]}  # targets and results take the direct way
    for ring in rings:
        neighbours |= ring.partners
    shared = _shared(plan, stage)
    neighbours |= {replica.owner for replica in stage.replicas}
    neighbours |= {holder for each in shared for holder in each.holders}
    peer_ids = sorted(peer for peer in neighbours if peer is not None and peer != node.node_id)
    return NodePlan(
        node_id=node.node_id,
        cluster_id=stage.cluster_id,
        num_clusters=len(plan.clusters),
        dealing=_dealing(plan),
        cluster_nodes=cluster,
        role=plan.role_of(node.node_id),
        stage=stage.index,
        num_stages=len(cluster),
        address=node.address,
        bind=node.bind,
        forward_target=after,
        backward_target=before,
        rings=rings,
        peers=tuple(_peer(node, plan.node(peer)) for peer in peer_ids),
        files=stage.files,
        plan_sha256=plan.sha256,
        device=node.device,
        positions=_positions(plan, stage),
        replicas=stage.replicas,
        shared=shared,
        needed_bytes=stage.needed_bytes,
        memory_bytes=node.memory_bytes,
        slack=0 if predicted is None else predicted.slack,
        short_steps=() if predicted is None else predicted.short_steps,
        schedule="1f1b" if plan.prediction is None else plan.prediction.run.schedule,
        compressions=_compressions(plan, stage.node_id),
    )


def _peer(node: NodeSpec, peer: NodeSpec) -> PeerSpec:
    rate_bps = min(node.bandwidth_bps, peer.bandwidth_bps)
    return PeerSpec(peer.node_id, dialable(peer.address), rate_bps)


def _positions(plan: Plan, stage: StagePlan) -> tuple[int, ...]:
    position = {name: index for index, name in enumerate(plan.state_names)}
    return tuple(position[name] for name in stage.parameters)


def _compressions(plan: Plan, node_id: int) -> tuple[LinkCompression, ...]:
    if plan.prediction is None:
        return ()
    return tuple(
        link for link in plan.prediction.compressions if node_id in (link.source, link.target)
    )


def _predicted(plan: Plan, node_id: int) -> StagePrediction | None:
    predicted = () if plan.prediction is None else plan.prediction.stages
    return next((each for each in predicted if each.node_id == node_id), None)


def _dealing(plan: Plan) -> tuple[int, ...]:
    """By the predicted speeds of the clusters if those of all their nodes were measured."""
    used = [plan.node(node_id) for cluster in plan.clusters for node_id in cluster]
    if plan.prediction is None or any(node.flops is None for node in used):
        return tuple(range(len(plan.clusters)))
    return deal([cluster.samples_per_s for cluster in plan.prediction.clusters])


def _shared(plan: Plan, stage: StagePlan) -> tuple[SharedParameter, ...]:
    """Parameters of a stage that others of its cluster hold replicas of."""
    holders: dict[str, list[int]] = {}
    for node_id in plan.clusters[stage.cluster_id]:
        for replica in plan.stage_of(node_id).replicas:
            if replica.owner == stage.node_id:
                holders.setdefault(replica.name, []).append(node_id)
    return tuple(
        SharedParameter(name, tuple(holders[name])) for name in stage.parameters if name in holders
    )


def _membership(ring: RingPlan, rank: int) -> RingMembership:
    return RingMembership(
        ring_id=ring.ring_id,
        rank=rank,
        size=len(ring.members),
        members=ring.members,
        parameters=ring.parameters,
        buffers=ring.buffers,
    )
