"""Where nobody says a schedule, it is the fastest good one that fits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.errors import NotEnoughMemoryError
from ravnest.plan.parts import NodeSpec
from ravnest.planning.choosing import form_by_schedule
from ravnest.planning.clustering.clusters import Formation
from ravnest.planning.inputs.settings import PlanningSettings, parse_settings
from ravnest.planning.inputs.table import cost_table
from ravnest.stage.schedule import Schedule

GB = 10**9
NUM_STAGES = 4
COSTS = GraphCosts(
    forward_flops=(1e9,) * 8,
    saved_bytes=(1000,) * 8,
    output_bytes=(0,) * 8,
    stored=tuple(ParameterCost(f"p{i}", GB // 8, True, True, i) for i in range(8)),
    cuts=tuple(Cut(i, 1000, 1000) for i in range(1, 8)),
    input_bytes=1000,
)


def settings(schedule: str | None, update_frequency: int | None = None) -> PlanningSettings:
    return parse_settings(
        schedule=schedule,
        optimizer_states=0,
        num_clusters=1,
        update_frequency=update_frequency,
        reduce_factor=None,
        compression=False,
        recompute=False,
        runtime_bytes=0,
        delay_compensation="off",
    )


def form(
    node_of: Callable[..., NodeSpec], gigabytes: float, chosen: PlanningSettings
) -> tuple[Formation, PlanningSettings]:
    nodes = [node_of(i, gigabytes=gigabytes) for i in range(NUM_STAGES)]
    return form_by_schedule(cost_table(COSTS), nodes, chosen)


def test_with_memory_it_delays_by_a_step(node_of: Callable[..., NodeSpec]) -> None:
    formation, chosen = form(node_of, 4, settings(None))
    assert chosen.schedule is Schedule.TWO_BW
    assert "schedule: 2bw, the default" in formation.assumed


def test_without_memory_for_two_versions_it_flushes(node_of: Callable[..., NodeSpec]) -> None:
    # A quarter of 1 GB of weights with its gradient, and once more the weights: 0.75 GB.
    formation, chosen = form(node_of, 0.6, settings(None))
    assert chosen.schedule is Schedule.ONE_F_ONE_B
    assert any("too little memory for 2bw" in each for each in formation.assumed)
    with pytest.raises(NotEnoughMemoryError):
        form(node_of, 0.6, settings("2bw"))


def test_its_steps_may_have_fewer_microbatches_than_stages(
    node_of: Callable[..., NodeSpec],
) -> None:
    formation, chosen = form(node_of, 0.85, settings(None, update_frequency=1))
    assert chosen.schedule is Schedule.TWO_BW
    assert [len(cluster.nodes) for cluster in formation.clusters] == [NUM_STAGES]
    with pytest.raises(NotEnoughMemoryError):  # it allows a single stage
        form(node_of, 0.85, settings("2bw", update_frequency=1))
