"""Two plans of one call side by side: what is different, and by what factor. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from ravnest.cli.rendering.view import StageView, clusters_of, step_time_s
from ravnest.plan.model import Plan


@dataclass(frozen=True, slots=True)
class NodeComparison:
    """One node in both plans; None where it has no part or is not there.

    Attributes:
        is_moved: whether it holds another part of the model, or none, or has a part now.
    """

    node_id: int
    before: StageView | None
    after: StageView | None
    is_moved: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two plans; figures are None where a plan has no prediction.

    Attributes:
        samples_per_s: before and after.
        step_time_s: of the slowest cluster, before and after.
        samples_per_step: of one cluster, before and after.
        num_clusters: before and after.
        nodes: in order of id, those of both plans.
    """

    samples_per_s: tuple[float | None, float | None]
    step_time_s: tuple[float | None, float | None]
    samples_per_step: tuple[int | None, int | None]
    num_clusters: tuple[int, int]
    nodes: tuple[NodeComparison, ...]

    @property
    def factor(self) -> float | None:
        """Samples per second after, as a multiple of those before."""
        before, after = self.samples_per_s
        return after / before if before and after is not None else None


def compare(before: Plan, after: Plan) -> Comparison:
    """Compares the plan of a call with that of the changed call."""
    views = [
        {view.stage.node_id: view for cluster in clusters_of(plan) for view in cluster.stages}
        for plan in (before, after)
    ]
    node_ids = sorted({node.node_id for node in (*before.nodes, *after.nodes)})
    return Comparison(
        samples_per_s=(_rate(before), _rate(after)),
        step_time_s=(step_time_s(before), step_time_s(after)),
        samples_per_step=(_samples_per_step(before), _samples_per_step(after)),
        num_clusters=(len(before.clusters), len(after.clusters)),
        nodes=tuple(_compare_node(i, views[0].get(i), views[1].get(i)) for i in node_ids),
    )


def _compare_node(
    node_id: int, before: StageView | None, after: StageView | None
) -> NodeComparison:
    places = [_place(view) for view in (before, after)]
    return NodeComparison(node_id, before, after, is_moved=places[0] != places[1])


def _place(view: StageView | None) -> tuple[int, int, tuple[int, int]] | None:
    return None if view is None else (view.stage.cluster_id, view.stage.index, view.stage.cut)


def _rate(plan: Plan) -> float | None:
    return None if plan.prediction is None else plan.prediction.samples_per_s


def _samples_per_step(plan: Plan) -> int | None:
    if plan.prediction is None:
        return None
    run = plan.prediction.run
    return run.update_frequency * run.samples_per_microbatch
