"""The planner's steady state and the simulated one, found in two ways, are the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from simulated_plans import Pipeline, pipelines, weight_seconds

from ravnest.planning.timing.parts import (
    ExchangeTime,
    LinkTime,
    MessageTime,
    PipelineTime,
    StageTime,
)
from ravnest.planning.timing.steady import steady_state
from ravnest.simulate.settings import SimulationSettings
from ravnest.simulate.simulator import simulate
from ravnest.stage.schedule import Schedule

SECONDS_PER_BYTE = 1e-6


def timed(pipeline: Pipeline, exchanges: tuple[ExchangeTime, ...] = ()) -> PipelineTime:
    """The same pipeline as the planner sees it."""
    link = LinkTime.between_equals(
        pipeline.activation_bytes * SECONDS_PER_BYTE,
        pipeline.gradient_bytes * SECONDS_PER_BYTE,
        2 * pipeline.latency_s,
    )
    return PipelineTime(
        pipeline.schedule,
        pipeline.update_frequency,
        tuple(
            StageTime(*each, weight_seconds(pipeline.schedule, k, each[1]))
            for k, each in enumerate(pipeline.cluster)
        ),
        (link,) * (len(pipeline.cluster) - 1),
        exchanges,
    )


@example(  # repeats every six steps, five of which are alike
    Pipeline(
        [(0.25, 0.64, 0.078), (0.031, 0.55, 0.187), *[(0.09, 0.446, 0.0)] * 4],
        Schedule.ASYNC,
        1,
        164_731,
        11_079,
        0.2537,
    )
)
@given(pipelines(6))
def test_simulation_and_prediction_agree(pipeline: Pipeline) -> None:
    predicted = steady_state(timed(pipeline))
    # Long, because an asynchronous pipeline may repeat only every several steps.
    result = simulate(pipeline.plan(), SimulationSettings(num_steps=150))
    assert result.clusters[0].step_time_s == pytest.approx(predicted.step_time_s, rel=0.02)
    busy = [node.utilisation for node in result.nodes]
    assert busy == pytest.approx(list(predicted.busy), rel=0.03, abs=1e-6)


def test_zero_bubble_pauses_a_third_as_long_as_1f1b() -> None:
    """Equal stages and passes: (S-1)(F+I-W) of pause per step against (S-1)(F+B), as published."""
    for num_stages, frequency in ((2, 4), (4, 4), (4, 8), (6, 9)):
        pauses = []
        for schedule in (Schedule.ZB_H1, Schedule.ONE_F_ONE_B):
            splits = map(schedule.splits_backward, range(num_stages))
            stages = tuple(StageTime(1.0, 2.0, 0.0, 1.0 * split) for split in splits)
            links = (LinkTime.between_equals(0.0, 0.0, 0.0),) * (num_stages - 1)
            found = steady_state(PipelineTime(schedule, frequency, stages, links))
            pauses.append(found.step_time_s - 3.0 * frequency)
        assert pauses == pytest.approx([num_stages - 1, 3 * (num_stages - 1)])


@given(pipelines(4), st.data(), st.integers(1, 300_000))
def test_they_agree_on_parameters_of_several_stages(
    pipeline: Pipeline, data: st.DataObject, tied_bytes: int
) -> None:
    pairs = list(itertools.combinations(range(len(pipeline.cluster)), 2))
    chosen = data.draw(st.lists(st.sampled_from(pairs), max_size=2, unique=True)) if pairs else []
    message = MessageTime(*(tied_bytes * SECONDS_PER_BYTE,) * 2)
    latency_s = 2 * pipeline.latency_s
    exchanges = tuple(ExchangeTime(*pair, message, message, latency_s) for pair in chosen)
    predicted = steady_state(timed(pipeline, exchanges))
    plan = pipeline.plan(ties=[(0, *pair) for pair in chosen], tied_bytes=tied_bytes)
    result = simulate(plan, SimulationSettings(num_steps=150))
    assert result.clusters[0].step_time_s == pytest.approx(predicted.step_time_s, rel=0.02)
