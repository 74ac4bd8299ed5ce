"""Predicted peak memory of a stage, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.planning.memory import MemoryModel
from ravnest.planning.settings import RUNTIME_FOOTPRINT_BYTES, PlanningSettings
from ravnest.planning.table import cost_table
from ravnest.stage.schedule import Schedule

COSTS = GraphCosts(
    forward_flops=(1.0, 1.0, 1.0, 1.0),
    saved_bytes=(100, 200, 400, 800),
    output_bytes=(0, 0, 0, 0),
    stored=(
        ParameterCost("a.weight", 1000, True, True, 0),
        ParameterCost("b.weight", 2000, True, True, 1),
        ParameterCost("b.frozen", 500, False, True, 2),
        ParameterCost("b.mean", 30, False, False, 2),
        ParameterCost("c.weight", 4000, True, True, 3),
    ),
    cuts=(Cut(1, 10, 7), Cut(3, 20, 9)),
    input_bytes=50,
)


def _bytes(settings: PlanningSettings, index: int, *, is_averaged: bool = False) -> int:
    """Peak of a stage of the cut into all three possible stages, the runtime left out."""
    model = MemoryModel(cost_table(COSTS), settings, is_averaged)
    peak = model.stage_bytes(np.array(index), np.array(index + 1), index, 3)
    return int(peak) - RUNTIME_FOOTPRINT_BYTES


def test_synchronous_stages_hold_weight_gradient_and_adam_states() -> None:
    settings = PlanningSettings()
    assert _bytes(settings, 0) == 4 * 1000 + 3 * (100 + 50 + 10) + 2 * (50 + 10 + 7)
    assert _bytes(settings, 1) == 4 * 2000 + 530 + 2 * (600 + 10 + 20) + 2 * (10 + 7 + 20 + 9)
    assert _bytes(settings, 2) == 4 * 4000 + 1 * (800 + 20) + 2 * (20 + 9)


@pytest.mark.parametrize(
    ("schedule", "versions"),
    [(Schedule.ONE_F_ONE_B, (0, 0, 0)), (Schedule.ASYNC, (2, 1, 0))],
)
def test_stashed_versions_are_counted_by_schedule_and_position(
    schedule: Schedule, versions: tuple[int, int, int]
) -> None:
    for index, trained in enumerate((1000, 2000, 4000)):
        extra = _bytes(PlanningSettings(schedule), index) - _bytes(PlanningSettings(), index)
        assert extra == versions[index] * trained


def test_one_stage_alone_stashes_nothing() -> None:
    assert [schedule.stashed_versions(0, 1) for schedule in Schedule] == [0, 0]


def test_optimizer_states_count_per_trainable_byte() -> None:
    settings = PlanningSettings()
    less = replace(settings, optimizer_states=0)
    assert _bytes(settings, 1) - _bytes(less, 1) == 2 * 2000


def test_averaging_works_on_a_copy_of_everything_stored() -> None:
    settings = PlanningSettings()
    assert _bytes(settings, 1, is_averaged=True) - _bytes(settings, 1) == 2000 + 530


def test_the_whole_model_and_the_smallest_stage() -> None:
    model = MemoryModel(cost_table(COSTS), PlanningSettings(), False)
    assert model.whole_model_bytes() == (
        RUNTIME_FOOTPRINT_BYTES + 4 * 7000 + 530 + (1500 + 50) + 2 * 50
    )
    first = 4 * 1000 + (100 + 50 + 10) + 2 * (50 + 10 + 7)
    assert model.smallest_stage_bytes() == RUNTIME_FOOTPRINT_BYTES + first


def _shared_bytes(costs: GraphCosts, *, schedule: Schedule = Schedule.ONE_F_ONE_B) -> list[int]:
    """What shared tensors add to each stage of the cut into three."""
    alone = replace(costs, stored=tuple(replace(each, uses=()) for each in costs.stored))
    models = [
        MemoryModel(cost_table(each), PlanningSettings(schedule), True) for each in (costs, alone)
    ]
    bounds = [(i, np.array(i), np.array(i + 1)) for i in range(3)]
    return [
        int(np.subtract(*(model.stage_bytes(start, end, i, 3) for model in models)))
        for i, start, end in bounds
    ]


def _with_uses(name: str, *uses: int) -> GraphCosts:
    return replace(
        COSTS,
        stored=tuple(
            replace(each, uses=uses, position=uses[0]) if each.name == name else each
            for each in COSTS.stored
        ),
    )


def test_replicas_hold_values_gradients_versions_and_messages() -> None:
    tied = _with_uses("a.weight", 0, 3)
    assert _shared_bytes(tied) == [2 * 1000, 0, 4 * 1000]  # the stage in between has none
    assert _shared_bytes(tied, schedule=Schedule.ASYNC) == [2 * 1000, 0, 4 * 1000]
    everywhere = _with_uses("a.weight", 0, 1, 2, 3)
    assert _shared_bytes(everywhere) == [2 * 1000, 4 * 1000, 4 * 1000]
    assert _shared_bytes(everywhere, schedule=Schedule.ASYNC) == [2 * 1000, 5 * 1000, 4 * 1000]
    assert _shared_bytes(_with_uses("b.weight", 1, 2)) == [0, 0, 0]  # on one stage


def test_copies_of_frozen_tensors_are_held_once() -> None:
    assert _shared_bytes(_with_uses("b.frozen", 1, 3)) == [0, 0, 500]


def test_tensors_used_by_the_same_stages_are_counted_together() -> None:
    costs = replace(
        COSTS,
        stored=(
            *COSTS.stored,
            ParameterCost("d", 10, True, True, 0, (0, 1)),
            ParameterCost("e", 20, True, True, 0, (0, 2)),
            ParameterCost("f", 40, True, True, 0, (0, 3)),
        ),
    )
    table = cost_table(costs)
    assert sorted(each.num_bytes for each in table.shared) == [30, 40]
    model = MemoryModel(table, PlanningSettings(), False)
    start, end = np.array([0, 1, 2]), np.array([1, 2, 3])
    assert model.exchanged_bytes(start, end).tolist() == [70, 30, 40]
    assert model.exchanged_bytes(np.array(0), np.array(3)) == 0
