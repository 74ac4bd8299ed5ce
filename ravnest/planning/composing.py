"""The plan as data, of clusters that are formed: stages, rings, and what is promised."""

from __future__ import annotations

from collections.abc import Sequence

from ravnest.capture.costs import ParameterCost
from ravnest.capture.exporting import CapturedModel
from ravnest.plan.model import Plan
from ravnest.plan.parts import NodeSpec, Replica, StagePlan
from ravnest.plan.prediction import Prediction
from ravnest.planning.clustering.clusters import Formation
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.predicting import PlannedModel, microbatch_seconds, predict
from ravnest.planning.rings import form_rings, owner_of
from ravnest.planning.search.ordering import Cluster


def compose_plan(
    captured: CapturedModel,
    nodes: tuple[NodeSpec, ...],
    formation: Formation,
    model: PlannedModel,
    settings: PlanningSettings,
) -> Plan:
    """The plan of these clusters, without hash and digests: no file is written yet."""
    clusters = tuple(
        tuple(node.node_id for node in cluster.nodes) for cluster in formation.clusters
    )
    cuts = [cluster.cutting.cuts for cluster in formation.clusters]
    state = captured.state
    names = set(state.state_names)
    rings = form_rings(captured.costs.stored, clusters, cuts)
    prediction = predict(model, formation, rings, settings)
    return Plan(
        model=captured.model_name,
        nodes=nodes,
        clusters=clusters,
        stages=tuple(
            stage
            for cluster_id, cluster in enumerate(formation.clusters)
            for stage in _stages(captured, cluster_id, cluster, prediction)
        ),
        rings=rings,
        aliases={name: owner for name, owner in state.aliases.items() if name in names},
        state_names=state.state_names,
        unused=formation.unused,
        prediction=prediction,
    )


def _stages(
    captured: CapturedModel, cluster_id: int, cluster: Cluster, prediction: Prediction
) -> tuple[StagePlan, ...]:
    cutting = cluster.cutting
    promised = {stage.node_id: stage for stage in prediction.stages}
    owners = [owner_of(tensor.position, cutting.cuts) for tensor in captured.costs.stored]
    owned = list(zip(captured.costs.stored, owners, strict=True))
    return tuple(
        StagePlan(
            node_id=node.node_id,
            cluster_id=cluster_id,
            index=index,
            cut=(cutting.cuts[index], cutting.cuts[index + 1]),
            parameters=tuple(t.name for t, owner in owned if owner == index and t.is_parameter),
            buffers=tuple(t.name for t, owner in owned if owner == index and not t.is_parameter),
            needed_bytes=promised[node.node_id].memory.total,  # slack included
            step_time_s=microbatch_seconds(prediction, node),
            replicas=tuple(
                Replica(tensor.name, cluster.nodes[owner].node_id)
                for tensor, owner in owned
                if tensor.trainable and owner < index and _is_used(tensor, cutting.cuts, index)
            ),
        )
        for index, node in enumerate(cluster.nodes)
    )


def _is_used(tensor: ParameterCost, cuts: Sequence[int], index: int) -> bool:
    return any(cuts[index] <= position < cuts[index + 1] for position in tensor.uses)
