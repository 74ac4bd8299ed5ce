"""Plans made by hand: the one of the published example, and variations of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ravnest.plan.model import Plan
from ravnest.plan.parts import NodeSpec, RingPlan, StagePlan

NAMES = (("conv2d_1.weight", "conv2d_1.bias"), ("dense_1.weight",), ("bn_3.weight", "bn_3.mean"))


def _node(node_id: int) -> NodeSpec:
    address = f"0.0.0.0:{8080 + node_id}"
    bind = f"127.0.0.1:{8080 + node_id}"
    return NodeSpec(node_id, address, bind, 8 * 10**9, 20e6, flops=1e11 if node_id else None)


def make_plan(clusters: tuple[tuple[int, ...], ...], *, model: str = "CNN", spare: int = 0) -> Plan:
    """A plan of clusters of three nodes each, all cut alike, with further nodes left unused."""
    stages = tuple(
        StagePlan(
            node_id=node_id,
            cluster_id=cluster_id,
            index=index,
            cut=(index * 3, index * 3 + 3),
            parameters=tuple(name for name in NAMES[index] if "mean" not in name),
            buffers=tuple(name for name in NAMES[index] if "mean" in name),
            needed_bytes=1000 + index,
            step_time_s=0.125,
        )
        for cluster_id, cluster in enumerate(clusters)
        for index, node_id in enumerate(cluster)
    )
    rings = tuple(
        RingPlan(i, tuple(c[i] for c in clusters), stages[i].parameters, stages[i].buffers)
        for i in range(3)
    )
    used = sorted(node_id for cluster in clusters for node_id in cluster)
    unused = {used[-1] + 1 + i: "it would slow its cluster down" for i in range(spare)}
    return Plan(
        model=model,
        nodes=tuple(_node(node_id) for node_id in (*used, *unused)),
        clusters=clusters,
        stages=stages,
        rings=rings,
        aliases={"tied.weight": "dense_1.weight", "a.weight": "dense_1.weight"},
        state_names=(*(name for names in NAMES for name in names), "tied.weight", "a.weight"),
        unused=unused,
    )


@pytest.fixture
def published_plan() -> Plan:
    """Six nodes in two clusters, as in the published example."""
    return make_plan(((1, 2, 5), (0, 3, 4)))


@pytest.fixture(scope="session")
def plan_of() -> Callable[..., Plan]:
    return make_plan


@pytest.fixture
def write_stage() -> Callable[[StagePlan, Path], None]:
    """Writes two small files whose contents depend on the stage."""

    def write(stage: StagePlan, folder: Path) -> None:
        (folder / "graph.json").write_text(f"graph {stage.cut}\n")
        (folder / "weights.safetensors").write_bytes(repr(stage.parameters).encode() * 100)

    return write
