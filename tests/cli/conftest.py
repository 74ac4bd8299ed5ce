"""Plans with predictions made by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import pytest

from ravnest.plan.model import Plan
from ravnest.plan.parts import NodeSpec, RingPlan, StagePlan
from ravnest.plan.prediction import (
    ClusterPrediction,
    LinkPrediction,
    MemoryBudget,
    PlannedRun,
    Prediction,
    StagePrediction,
    Traffic,
)

MEMORY = MemoryBudget(
    parameters=500_000_000,
    gradients=400_000_000,
    optimizer=800_000_000,
    stashed=0,
    averaging=500_000_000,
    activations=1_200_000_000,
    workspace=150_000_000,
    communication=50_000_000,
    runtime=400_000_000,
)
RUN = PlannedRun("1f1b", 8, 16, 100, "torch.optim.adamw.AdamW", False, "none")


def _node(node_id: int) -> NodeSpec:
    address = f"203.0.113.5:{8000 + node_id}"
    return NodeSpec(node_id, address, address, (4 + node_id % 3 * 4) * 10**9, 1e8, 5e10, 0.002)


def _stage(cluster_id: int, index: int, node_id: int) -> StagePlan:
    names = tuple(f"blocks.{3 * index + i}.{n}" for i in range(3) for n in ("weight", "bias"))
    return StagePlan(
        node_id, cluster_id, index, (index * 30, index * 30 + 30), names, (), MEMORY.total, 0.05
    )


def _links(clusters: tuple[tuple[int, ...], ...]) -> tuple[LinkPrediction, ...]:
    links = []
    for cluster in clusters:
        for index, (a, b) in enumerate(pairwise(cluster)):
            load = (0.12 + 0.17 * index) % 1
            links.append(LinkPrediction(a, b, Traffic.ACTIVATIONS, 1_230_000, 0.0098, 0.004, load))
            links.append(
                LinkPrediction(b, a, Traffic.GRADIENTS, 2_460_000, 0.0196, 0.004, load / 2)
            )
    if len(clusters) > 1:
        for rank, cluster in enumerate(clusters):
            onward = clusters[(rank + 1) % len(clusters)]
            for index, node_id in enumerate(cluster):
                target = onward[min(index, len(onward) - 1)]
                links.append(
                    LinkPrediction(
                        node_id, target, Traffic.AVERAGING, 500_000_000, 40.0, 0.004, 0.05
                    )
                )
    return tuple(sorted(links, key=lambda link: (link.source, link.target, link.traffic)))


def _prediction(clusters: tuple[tuple[int, ...], ...], rate: float) -> Prediction:
    stages = tuple(
        StagePrediction(node_id, MEMORY, 0.0123, 0.0246, 0.004, 0.83 - 0.1 * (index % 4))
        for cluster in clusters
        for index, node_id in enumerate(cluster)
    )
    return Prediction(
        run=RUN,
        stages=stages,
        links=_links(clusters),
        clusters=tuple(
            ClusterPrediction(i, 0.312, rate, 0.18, f"node {cluster[-1]} computes")
            for i, cluster in enumerate(clusters)
        ),
        averaging_s=1.2 if len(clusters) > 1 else 0.0,
        samples_per_s=rate * len(clusters) * 0.96,
        upper_bound_samples_per_s=rate * len(clusters),
        is_optimal=False,
        planned_samples_per_s=rate * len(clusters) * 0.97,
        assumed=("update_frequency is 8", "speed of node 2 is 50 GFLOP/s, as the others'"),
    )


def predicted_plan(
    clusters: tuple[tuple[int, ...], ...] = ((0, 1, 2), (3, 4)),
    *,
    spare: int = 2,
    rate: float = 410.0,
    has_prediction: bool = True,
    model: str = "GPT",
) -> Plan:
    """Clusters of these nodes, and `spare` further nodes that are not used."""
    used = sorted(node_id for cluster in clusters for node_id in cluster)
    unused = {used[-1] + 1 + i: "it would slow its cluster down" for i in range(spare)}
    stages = tuple(
        _stage(cluster_id, index, node_id)
        for cluster_id, cluster in enumerate(clusters)
        for index, node_id in enumerate(cluster)
    )
    num_rings = max(map(len, clusters))
    rings = tuple(
        RingPlan(i, tuple(c[min(i, len(c) - 1)] for c in clusters), stages[0].parameters, ())
        for i in range(num_rings)
    )
    return Plan(
        model=model,
        nodes=tuple(_node(node_id) for node_id in (*used, *unused)),
        clusters=clusters,
        stages=stages,
        rings=rings,
        aliases={},
        state_names=(),
        unused=unused,
        prediction=_prediction(clusters, rate) if has_prediction else None,
    )


@pytest.fixture(scope="session")
def plan_with() -> Callable[..., Plan]:
    return predicted_plan


@pytest.fixture
def plan() -> Plan:
    """Two clusters, of three nodes and of two, and two nodes that are not used."""
    return predicted_plan()


@pytest.fixture
def faster_plan(plan: Plan) -> Plan:
    """The same pool in another shape: node 4 has moved, node 5 is used, and all of it is faster."""
    other = predicted_plan(((0, 1, 2, 4), (3, 5)), spare=1, rate=520.0)
    assert plan.prediction is not None
    return dataclasses.replace(other, nodes=plan.nodes)
