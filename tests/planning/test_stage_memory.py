"""Predicted peak memory of a stage, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.holdings import RING_BYTES
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import (
    ACCELERATOR_FOOTPRINT_BYTES,
    RUNTIME_FOOTPRINT_BYTES,
    OptimizerCost,
    PlanningSettings,
)
from ravnest.planning.inputs.table import cost_table
from ravnest.stage.compensating import Compensator
from ravnest.stage.delays import DelayCompensation, compensation_of
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

ADAM = OptimizerCost("two states", 2.0)
SETTINGS = PlanningSettings(optimizer=ADAM)
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
STAGES = [(i, np.array(i), np.array(i + 1)) for i in range(3)]


def model_of(
    settings: PlanningSettings = SETTINGS, costs: GraphCosts = COSTS, *, is_averaged: bool = False
) -> MemoryModel:
    return MemoryModel(cost_table(costs), settings, is_averaged)


def peaks(model: MemoryModel) -> list[int]:
    """Of the stages of the cut into three, the runtime left out."""
    return [int(model.stage_bytes(i, j, k, 3)) - model.runtime_bytes for k, i, j in STAGES]


def test_synchronous_stages_hold_weight_gradient_states_activations_and_messages() -> None:
    assert peaks(model_of()) == [
        4 * 1000 + 3 * (100 + 50) + 50 + 2 * 7,
        4 * 2000 + 530 + 2 * (600 + 10) + 10 + 7 + 2 * 9,
        4 * 4000 + 1 * (800 + 20) + 20 + 9,
    ]


def test_recomputing_stages_hold_inputs_and_one_microbatch() -> None:
    assert peaks(model_of(replace(SETTINGS, recompute=True))) == [
        4 * 1000 + 3 * 50 + 100 + 50 + 2 * 7 + 10,
        4 * 2000 + 530 + 2 * 10 + 600 + 10 + 7 + 2 * 9 + 20,
        4 * 4000 + 1 * (800 + 20) + 20 + 9,  # one in flight: nothing to save
    ]


@pytest.mark.parametrize(
    ("schedule", "frequency", "versions"),
    [
        (Schedule.ONE_F_ONE_B, None, (0, 0, 0)),
        (Schedule.ASYNC, None, (2, 1, 0)),
        (Schedule.ASYNC, 1, (2, 1, 0)),
        (Schedule.ASYNC, 2, (1, 1, 0)),
    ],
)
def test_stashed_versions_are_counted_by_schedule_and_position(
    schedule: Schedule, frequency: int | None, versions: tuple[int, int, int]
) -> None:
    model = model_of(replace(SETTINGS, schedule=schedule, update_frequency=frequency))
    assert tuple(model.settings.stashed(k, 3) for k in range(3)) == versions
    lasting = [model.budget(k, k + 1, k, 3).stashed for k in range(3)]
    # Of the root's two versions, or its one that two microbatches need, one meets whole gradients.
    assert lasting == [1000 * bool(versions[0]), 0, 0]


def test_a_version_that_goes_before_the_gradients_are_whole_takes_their_place() -> None:
    settings = replace(SETTINGS, schedule=Schedule.ASYNC, update_frequency=4)
    costs = replace(COSTS, peak_bytes=(600, 350, 720, 1500))
    budget = model_of(settings, costs).budget(0, 2, 0, 2)
    assert (budget.stashed, budget.gradients) == (0, 3000)
    # The step: the version beside the gradients, and one microbatch less of 700 and its input.
    assert budget.workspace == 3000 - (700 + 50)
    cuts = (COSTS.cuts[0], replace(COSTS.cuts[1], unsaved_bytes=1000))
    budget = model_of(settings, replace(costs, cuts=cuts)).budget(0, 2, 0, 2)
    # The first backward pass, at its end: the version, gradients of what comes after position 0,
    # and 600 at that position, where 700 are counted as saved.
    assert budget.workspace == 2000 + 600 - 700


def test_a_step_of_few_microbatches_keeps_fewer_in_flight() -> None:
    model = model_of(replace(SETTINGS, update_frequency=2))
    assert [model.settings.in_flight(k, 4) for k in range(4)] == [2, 2, 2, 1]
    assert model.budget(0, 1, 0, 3).activations == 2 * (100 + 50)
    assert replace(model.settings, schedule=Schedule.ASYNC).in_flight(0, 4) == 4


def test_one_stage_alone_stashes_nothing() -> None:
    alone = [StagePosition(schedule, 0, 1, 1) for schedule in Schedule]
    assert [position.max_staleness for position in alone] == [0] * len(alone)


def test_averaging_works_on_a_copy_of_everything_stored_in_its_own_dtype() -> None:
    stored = (*COSTS.stored, ParameterCost("half", 60, False, False, 2, averaged_bytes=120))
    costs = replace(COSTS, stored=stored)
    alone, averaged = model_of(costs=costs), model_of(costs=costs, is_averaged=True)
    assert peaks(averaged)[1] - peaks(alone)[1] == 2000 + 530 + 120 + RING_BYTES
    assert averaged.budget(1, 2, 1, 3).averaging == 2000 + 530 + 120


def test_rounds_keep_anchors_of_what_is_trained_and_copies_of_what_was_sent() -> None:
    plain = model_of(is_averaged=True).budget(1, 2, 1, 3).averaging
    trained = sum(each.num_bytes for each in COSTS.stored[1:2] if each.trainable)
    kept = replace(SETTINGS, kept_for_rounds=2.5)
    assert model_of(kept, is_averaged=True).budget(1, 2, 1, 3).averaging == plain + 2.5 * trained
    sent = replace(SETTINGS, rounds_overlap=True)
    assert model_of(sent, is_averaged=True).budget(1, 2, 1, 3).averaging == 2 * plain
    assert model_of(replace(kept, rounds_overlap=True)).budget(1, 2, 1, 3).averaging == 0


def test_the_most_demanding_operator_of_the_stage_adds_its_temporaries() -> None:
    # Before the last operator of a stage less is saved, so its temporaries count for less.
    costs = replace(COSTS, peak_bytes=(190, 900, 750, 1507))
    assert [model_of(costs=costs).budget(k, k + 1, k, 3).workspace for k in range(3)] == [
        90,
        200,
        7,
    ]
    assert model_of(costs=costs).budget(0, 3, 0, 1).workspace == 7


def test_a_step_counts_where_it_needs_more_than_the_activations_it_finds_gone() -> None:
    step = replace(SETTINGS, optimizer=OptimizerCost("o", 0.0, step_bytes=2.0))
    model = model_of(step)
    assert model.budget(0, 1, 0, 3).workspace == 2 * 1000 - 3 * (100 + 50)
    asynchronous = model_of(replace(step, schedule=Schedule.ASYNC))
    # One of the root's two versions goes before the gradients are whole.
    assert asynchronous.budget(0, 1, 0, 3).workspace == 1000 + 2 * 1000 - (100 + 50)
    joint = replace(step, optimizer=OptimizerCost("o", 0.0, joint_step_bytes=1.0))
    assert model_of(joint).budget(0, 3, 0, 1).workspace == 7000 - (1500 + 50)


def test_outputs_that_nothing_saved_and_inputs_that_are_saved_again_count_once() -> None:
    cuts = (Cut(1, 10, 7, unsaved_bytes=6, received_bytes=10), Cut(3, 20, 9))
    model = model_of(costs=replace(COSTS, cuts=cuts, criterion_bytes=70))
    activations = [model.budget(k, k + 1, k, 3).activations for k in range(3)]
    assert activations == [3 * (100 + 50 + 6), 2 * (600 + 10 - 10), 800 + 20 + 70]


def test_of_an_accelerator_only_its_own_memory_counts() -> None:
    node = NodeSpec(0, "a:1", "a:1", 1, 1.0, device="cuda:0")
    model = model_of(is_averaged=True)
    budget = model.on(node).budget(1, 2, 1, 3)
    assert budget.runtime == ACCELERATOR_FOOTPRINT_BYTES
    assert budget.averaging == 0
    assert budget.communication == 7 + 9
    assert budget.parameters == 2530
    assert model.on(replace(node, device="cpu")) is model
    assert model.on(replace(node, device=None)) is model


def test_the_whole_model_and_the_smallest_stage() -> None:
    model = model_of()
    assert model.whole_model_bytes() == (
        RUNTIME_FOOTPRINT_BYTES + 4 * 7000 + 530 + (1500 + 50) + 50
    )
    first = 4 * 1000 + (100 + 50) + 50 + 7
    assert model.smallest_stage_bytes() == RUNTIME_FOOTPRINT_BYTES + first


def _shared_bytes(costs: GraphCosts, *, schedule: Schedule = Schedule.ONE_F_ONE_B) -> list[int]:
    """What shared tensors add to each stage of the cut into three."""
    alone = replace(costs, stored=tuple(replace(each, uses=()) for each in costs.stored))
    settings = replace(SETTINGS, schedule=schedule)
    both = (peaks(model_of(settings, each, is_averaged=True)) for each in (costs, alone))
    return [one - other for one, other in zip(*both, strict=True)]


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
    model = MemoryModel(table, SETTINGS, False)
    start, end = np.array([0, 1, 2]), np.array([1, 2, 3])
    assert model.exchanged_bytes(start, end).tolist() == [70, 30, 40]
    assert model.exchanged_bytes(np.array(0), np.array(3)) == 0


@st.composite
def models(draw: st.DrawFn) -> MemoryModel:
    """Any costs and settings."""
    num = draw(st.integers(1, 9))
    size = st.integers(0, 10**6)

    def sizes() -> tuple[int, ...]:
        return tuple(draw(size) for _ in range(num))

    saved = sizes()
    places = sorted(draw(st.sets(st.integers(1, num - 1)))) if num > 1 else []
    uses = st.sets(st.integers(0, num - 1), min_size=1, max_size=3).map(sorted)
    stored = [
        ParameterCost(f"p{i}", draw(size), draw(st.booleans()), True, found[0],
                      tuple(found) if found[1:] else (), draw(size))
        for i, found in enumerate(draw(st.lists(uses, max_size=5)))
    ]  # fmt: skip
    costs = GraphCosts(
        (1.0,) * num, saved, sizes(), tuple(stored),
        tuple(Cut(p, draw(size), draw(size), draw(size)) for p in places), draw(size),
        tuple(int(total) + draw(size) for total in np.cumsum(saved)), draw(size),
    )  # fmt: skip
    ratio = st.floats(0, 3)
    settings = PlanningSettings(
        draw(st.sampled_from(Schedule)),
        OptimizerCost("o", draw(ratio), draw(st.integers(0, 16)), draw(ratio), draw(ratio)),
        recompute=draw(st.booleans()),
        update_frequency=draw(st.none() | st.integers(1, 5)),
        activation_ratio=draw(st.sampled_from((1.0, 0.5, 0.25))),
        gradient_ratio=draw(st.sampled_from((1.0, 0.5))),
        kept_for_rounds=draw(ratio),
        rounds_overlap=draw(st.booleans()),
    )
    return MemoryModel(cost_table(costs), settings, draw(st.booleans()), draw(st.booleans()))


@given(models(), st.integers(1, 4), st.data())
def test_parts_add_up_and_bounds_hold(model: MemoryModel, stages: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, stages - 1))
    last = model.table.last
    start, end = np.arange(last)[:, None], np.arange(last + 1)[None, :]
    peak = model.stage_bytes(start, end, index, stages)
    at_end, at_start = model.parts(index, stages)
    most = model.most_beyond_parts(index, stages)
    held = model.held_bytes(index, stages)
    assert (np.diff(held) >= 0).all()
    for i in range(last):
        for j in range(i + 1, last + 1):
            assert model.budget(i, j, index, stages).total == peak[i, j]
            assert at_end[j] + at_start[i] <= peak[i, j] <= at_end[j] + at_start[i] + most
            assert held[j] - held[i] <= peak[i, j]


def test_compensating_stages_keep_an_average_and_compute_with_a_copy_of_one_tensor() -> None:
    settings = replace(SETTINGS, schedule=Schedule.ASYNC, update_frequency=1)
    off = model_of(settings)
    on = model_of(replace(settings, compensation=DelayCompensation.AUTO))
    kept = [
        on.budget(k, k + 1, k, 3).optimizer - off.budget(k, k + 1, k, 3).optimizer for k in range(3)
    ]
    assert kept == [1000, 2000, 0]  # a tensor like each parameter; the leaf has no delay
    start, end = np.array(0), np.array(1)
    steps = [m._holdings(0, 3)._step_bytes(start, end) for m in (off, on)]
    assert steps == [0, 2 * 1000]  # of a tensor of 1000 bytes
    flushed = replace(settings, schedule=Schedule.ONE_F_ONE_B)
    assert peaks(model_of(replace(flushed, compensation=DelayCompensation.AUTO))) == peaks(
        model_of(flushed)
    )


def test_a_compensator_keeps_what_is_counted() -> None:
    parameters = {str(n): torch.nn.Parameter(torch.zeros(n, dtype=torch.bfloat16)) for n in (3, 50)}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    found = compensation_of(DelayCompensation.AUTO, 1.0, optimizer)
    assert found is not None
    compensator = Compensator(parameters, found)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    compensator.step(optimizer)
    assert compensator.num_bytes == sum(parameter.nbytes for parameter in parameters.values())
