"""Simulated times against closed forms and against a plain recursion over the same rules."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_plans import Pipeline, make_plan, pipelines

from ravnest.plan.prediction import Traffic
from ravnest.simulate.result import Work
from ravnest.simulate.settings import SimulationSettings
from ravnest.simulate.simulator import simulate
from ravnest.stage.schedule import Action, ActionKind, Schedule, StagePosition, list_actions

KINDS = {
    ActionKind.FORWARD: Work.FORWARD,
    ActionKind.BACKWARD: Work.BACKWARD,
    ActionKind.STEP: Work.UPDATE,
    ActionKind.BACKWARD_INPUT: Work.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Work.BACKWARD_WEIGHT,
}
RETURNS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("update_frequency", [1, 4, 8])
def test_equal_stages_without_latency(num_stages: int, update_frequency: int) -> None:
    cluster = [(1.0, 2.0, 0.0)] * num_stages
    flushed = simulate(make_plan([cluster], update_frequency=update_frequency)).clusters[0]
    assert flushed.step_time_s == pytest.approx((update_frequency + num_stages - 1) * 3.0)
    assert flushed.samples_per_s == pytest.approx(2 * update_frequency / flushed.step_time_s)
    plan = make_plan([cluster], update_frequency=update_frequency, schedule="async")
    assert simulate(plan).clusters[0].step_time_s == pytest.approx(update_frequency * 3.0)


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0, 1), st.integers(1, 9))
def test_one_node_computes_without_a_pause(f: float, b: float, u: float, frequency: int) -> None:
    for schedule in Schedule:
        plan = make_plan([[(f, b, u)]], update_frequency=frequency, schedule=schedule)
        result = simulate(plan)
        assert result.clusters[0].step_time_s == pytest.approx(frequency * (f + b) + u)
        assert result.nodes[0].utilisation == pytest.approx(1)
        assert result.nodes[0].uplink == 0
        assert result.links == ()


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_async_is_as_fast_as_its_slowest_stage(slow: int) -> None:
    cluster = [(1.0, 1.0, 0.0)] * 3
    cluster[slow] = (2.0, 4.0, 0.5)
    result = simulate(make_plan([cluster], schedule="async", update_frequency=2))
    assert result.clusters[0].step_time_s == pytest.approx(2 * 6.0 + 0.5)
    assert result.nodes[slow].utilisation == pytest.approx(1)


def test_a_link_bounds_two_stages() -> None:
    """One second per message each way: full duplex, so a microbatch costs one second."""
    plan = make_plan([[(0, 0, 0)] * 2], activation_bytes=10**6, gradient_bytes=10**6)
    assert simulate(plan).clusters[0].step_time_s == pytest.approx(4 + 1)
    plan = make_plan(
        [[(0, 0, 0)] * 2], activation_bytes=10**6, gradient_bytes=10**6, schedule="async"
    )
    result = simulate(plan)
    assert result.clusters[0].step_time_s == pytest.approx(4)
    assert [node.uplink for node in result.nodes] == pytest.approx([1, 1])


def test_the_uplink_of_a_stem_carries_both_ways() -> None:
    plan = make_plan(
        [[(0, 0, 0)] * 3], activation_bytes=10**6, gradient_bytes=10**6, schedule="async"
    )
    result = simulate(plan)
    assert result.clusters[0].step_time_s == pytest.approx(4 * 2)
    assert result.nodes[1].uplink == pytest.approx(1)
    assert {(link.source, link.target): link.load for link in result.links} == pytest.approx(
        {(0, 1): 0.5, (1, 0): 0.5, (1, 2): 0.5, (2, 1): 0.5}
    )


def test_latency_bounds_what_is_in_flight() -> None:
    """Two microbatches in flight, each under way for two latencies and both passes."""
    plan = make_plan([[(0.1, 0.1, 0)] * 2], latency_s=0.5, schedule="async")
    assert simulate(plan).clusters[0].step_time_s == pytest.approx(4 * (2 * 1.0 + 0.4) / 2)


def test_the_slower_end_sets_the_rate() -> None:
    plan = make_plan(
        [[(0, 0, 0)] * 2],
        activation_bytes=10**6,
        schedule="async",
        bandwidth_bps=[8e6, 2e6],
    )
    assert simulate(plan).clusters[0].step_time_s == pytest.approx(4 * 4)


@given(pipelines(5))
def test_every_interval_is_where_a_plain_recursion_puts_it(pipeline: Pipeline) -> None:
    cluster = pipeline.cluster
    result = simulate(pipeline.plan(), SimulationSettings(num_steps=4, timeline=True))
    sizes = pipeline.activation_bytes, pipeline.gradient_bytes
    expected = by_recursion(
        cluster,
        pipeline.schedule,
        pipeline.update_frequency,
        4,
        sizes,
        2 * pipeline.latency_s,
    )
    assert result.timeline is not None
    for node, intervals in result.timeline.nodes.items():
        assert [(i.work, i.number) for i in intervals] == [(w, n) for w, n, _ in expected[node]]
        assert [i.end_s for i in intervals] == pytest.approx([end for _, _, end in expected[node]])
        for interval in intervals:
            seconds = seconds_of(cluster[node])[list(KINDS.values()).index(interval.work)]
            assert interval.end_s - interval.begin_s == pytest.approx(seconds, abs=1e-9)


def seconds_of(stage: tuple[float, float, float]) -> tuple[float, ...]:
    """In the order of KINDS; who splits a backward pass needs 0.4 of it for weights."""
    return (*stage, 0.6 * stage[1], 0.4 * stage[1])


def by_recursion(
    cluster: list[tuple[float, float, float]],
    schedule: Schedule,
    frequency: int,
    num_steps: int,
    sizes: tuple[int, int],
    latency_s: float,
) -> list[list[tuple[Work, int, float]]]:
    """When each action ends: after the one before it and the arrival of its input."""
    size = len(cluster)
    orders = [
        list(list_actions(StagePosition(schedule, k, size, frequency), frequency * num_steps))
        for k in range(size)
    ]

    @cache
    def end(k: int, position: int) -> float:
        if position < 0:
            return 0.0
        action = orders[k][position]
        start = end(k, position - 1)
        if action.kind is ActionKind.FORWARD and k > 0:
            start = max(start, sent(k - 1, orders[k - 1].index(action)) + latency_s)
        if action.kind in RETURNS and k < size - 1:
            sender = next(
                i
                for i, other in enumerate(orders[k + 1])
                if other.kind in RETURNS and other.number == action.number
            )
            start = max(start, sent(k + 1, sender) + latency_s)
        return start + seconds_of(cluster[k])[list(KINDS).index(action.kind)]

    @cache
    def sent(k: int, position: int) -> float:
        """When the last byte of what an action and those before it send has left."""
        if position < 0:
            return 0.0
        return max(sent(k, position - 1), end(k, position)) + seconds(k, orders[k][position])

    def seconds(k: int, action: Action) -> float:
        if action.kind is ActionKind.FORWARD and k < size - 1:
            return sizes[0] * 1e-6
        return sizes[1] * 1e-6 if action.kind in RETURNS and k > 0 else 0.0

    return [
        [(KINDS[a.kind], a.number, end(k, position)) for position, a in enumerate(order)]
        for k, order in enumerate(orders)
    ]


def test_an_owner_waits_for_gradients_and_a_holder_for_values() -> None:
    """A lone microbatch per step; tied messages take 5 s, all others none."""
    plan = make_plan(
        [[(1, 1, 1)] * 2],
        update_frequency=1,
        ties=[(0, 0, 1)],
        tied_bytes=5 * 10**6,
    )
    result = simulate(plan, SimulationSettings(num_steps=5, timeline=True))
    assert result.timeline is not None
    # The values (0 to 5) hold up the activation behind them; the holder's gradient (7 to 12)
    # holds up the owner's step.
    assert [(i.begin_s, i.end_s) for i in result.timeline.nodes[0][:3]] == [
        (0, 1),
        (7, 8),
        (12, 13),
    ]
    assert [(i.begin_s, i.end_s) for i in result.timeline.nodes[1][:3]] == [(5, 6), (6, 7), (7, 8)]
    assert result.clusters[0].step_time_s == pytest.approx(13)
    parameters = [link for link in result.links if link.traffic is Traffic.PARAMETERS]
    assert [(link.source, link.num_messages) for link in parameters] == [(0, 5), (1, 5)]


def test_step_time_without_a_step_is_infinite() -> None:
    from ravnest.simulate.settings import Failure

    failures = (Failure(0, 0.0),)
    result = simulate(make_plan([[(1, 1, 0)]]), SimulationSettings(failures=failures))
    assert result.clusters[0].step_time_s == math.inf
    assert result.clusters[0].samples_per_s == 0
    assert result.samples_per_s == 0
