"""A plan and its prediction side by side, as every output needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ravnest.plan.identity import Role
from ravnest.plan.model import Plan
from ravnest.plan.parts import NodeSpec, StagePlan, role_at
from ravnest.plan.prediction import ClusterPrediction, LinkPrediction, Prediction, StagePrediction


@dataclass(frozen=True, slots=True)
class StageView:
    """One used node.

    Attributes:
        prediction: None when the plan has none.
    """

    stage: StagePlan
    node: NodeSpec
    role: Role
    prediction: StagePrediction | None

    @property
    def layers(self) -> tuple[str, ...]:
        """Modules with a parameter or buffer that this stage owns, in the model's order."""
        names = (*self.stage.parameters, *self.stage.buffers)
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in names))

    @property
    def peak_bytes(self) -> int:
        """Predicted peak memory."""
        return self.stage.needed_bytes if self.prediction is None else self.prediction.memory.total

    @property
    def memory_share(self) -> float:
        """Of what the node offers."""
        return self.peak_bytes / self.node.memory_bytes


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One pipeline, its stages from root to leaf."""

    cluster_id: int
    stages: tuple[StageView, ...]
    prediction: ClusterPrediction | None


def clusters_of(plan: Plan) -> tuple[ClusterView, ...]:
    """The clusters of a plan, in order of id."""
    prediction = plan.prediction
    at_work = {each.node_id: each for each in prediction.stages} if prediction else {}
    of_cluster = {each.cluster_id: each for each in prediction.clusters} if prediction else {}
    nodes = {node.node_id: node for node in plan.nodes}
    stages = {stage.node_id: stage for stage in plan.stages}
    return tuple(
        ClusterView(
            number,
            tuple(
                StageView(stages[i], nodes[i], role_at(index, len(members)), at_work.get(i))
                for index, i in enumerate(members)
            ),
            of_cluster.get(number),
        )
        for number, members in enumerate(plan.clusters)
    )


def links_by_load(links: Sequence[LinkPrediction]) -> list[LinkPrediction]:
    """The busiest first."""
    return sorted(links, key=lambda link: (-link.load, link.source, link.target, link.traffic))


def step_time_s(plan: Plan) -> float | None:
    """Of the slowest cluster."""
    if plan.prediction is None:
        return None
    return max(cluster.step_time_s for cluster in plan.prediction.clusters)


def gap(prediction: Prediction) -> float:
    """How far the plan is below the upper bound, as a share of it; both by the closed form."""
    bound = prediction.upper_bound_samples_per_s
    return max(0.0, 1 - prediction.planned_samples_per_s / bound) if bound > 0 else 0.0


def averaging_share(prediction: Prediction) -> float:
    """Share of the clusters' samples per second that averaging costs."""
    training = sum(cluster.samples_per_s for cluster in prediction.clusters)
    return max(0.0, 1 - prediction.samples_per_s / training) if training > 0 else 0.0


def unused_by_reason(plan: Plan) -> dict[str, list[int]]:
    """Unused nodes that share a reason, in order of their smallest id."""
    found: dict[str, list[int]] = {}
    for node_id in sorted(plan.unused):
        found.setdefault(plan.unused[node_id], []).append(node_id)
    return found
