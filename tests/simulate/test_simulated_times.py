"""Simulated times against closed forms and against a plain recursion over the same rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_plans import Pipeline, make_plan, pipelines

from ravnest.plan.prediction import Traffic
from ravnest.simulate.result import Work
from ravnest.simulate.settings import SimulationSettings
from ravnest.simulate.simulator import simulate
from ravnest.stage.actions import Action, ActionKind, list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

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


def test_the_downlink_of_a_stem_carries_both_ways() -> None:
    """Its neighbours send at once, each at a rate that alone it could receive at."""
    plan = make_plan(
        [[(0, 0, 0)] * 3],
        activation_bytes=10**6,
        gradient_bytes=10**6,
        schedule="async",
        bandwidth_bps=[80e6, 8e6, 80e6],
    )
    assert simulate(plan).clusters[0].step_time_s == pytest.approx(4 * 2)


def test_a_slow_receiver_holds_up_no_one_else() -> None:
    """A stem sends 0.1 s of activations to the leaf and of gradients to a root that takes 1 s."""
    plan = make_plan(
        [[(0, 0, 0)] * 3],
        activation_bytes=10**5,
        gradient_bytes=10**6,
        schedule="async",
        bandwidth_bps=[8e6, 80e6, 80e6],
    )
    result = simulate(plan)
    assert result.clusters[0].step_time_s == pytest.approx(4 * 1.0, rel=0.1)


@given(pipelines(5), st.data())
def test_every_interval_is_where_plain_rules_put_it(
    pipeline: Pipeline, data: st.DataObject
) -> None:
    cluster = pipeline.cluster
    rates = [data.draw(st.sampled_from([2e6, 8e6, 30e6])) for _ in cluster]
    result = simulate(
        pipeline.plan(bandwidth_bps=rates), SimulationSettings(num_steps=4, timeline=True)
    )
    expected = by_plain_rules(pipeline, 4, rates)
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


class Sent(NamedTuple):
    """A message by the index of its action at the sender, and when its bytes come."""

    first_s: float
    sender: int
    position: int
    last_s: float


def by_plain_rules(
    pipeline: Pipeline, num_steps: int, rates: Sequence[float]
) -> list[list[tuple[Work, int, float]]]:
    """When each action ends: after the one before it and the arrival of its input.

    Arrivals depend on the order in which messages begin to come, and that on arrivals: both are
    found from each other until nothing changes. Each time at least one arrival more is final.
    """
    size, latency_s = len(pipeline.cluster), 2 * pipeline.latency_s
    count = pipeline.update_frequency * num_steps
    orders = [
        list(
            list_actions(
                StagePosition(pipeline.schedule, k, size, pipeline.update_frequency), count
            )
        )
        for k in range(size)
    ]

    def target(k: int, action: Action) -> int | None:
        if action.kind is ActionKind.FORWARD and k < size - 1:
            return k + 1
        return k - 1 if action.kind in RETURNS and k > 0 else None

    def num_bits(action: Action) -> int:
        is_forward = action.kind is ActionKind.FORWARD
        return 8 * (pipeline.activation_bytes if is_forward else pipeline.gradient_bytes)

    def ends_of(arrived: dict[tuple[int, int], float]) -> list[list[float]]:
        """By stage and position; what nothing is known of has arrived at once."""
        ends: list[list[float]] = []
        for k, order in enumerate(orders):
            at, own = 0.0, []
            for action in order:
                sender, kinds = k - 1, (ActionKind.FORWARD,)
                if action.kind in RETURNS:
                    sender, kinds = k + 1, RETURNS
                if 0 <= sender < size and action.kind in (ActionKind.FORWARD, *RETURNS):
                    position = next(
                        i
                        for i, other in enumerate(orders[sender])
                        if other.kind in kinds and other.number == action.number
                    )
                    at = max(at, arrived.get((sender, position), 0.0))
                at += seconds_of(pipeline.cluster[k])[list(KINDS).index(action.kind)]
                own.append(at)
            ends.append(own)
        return ends

    def arrivals_of(ends: list[list[float]]) -> dict[tuple[int, int], float]:
        coming: list[list[Sent]] = [[] for _ in range(size)]
        for k, order in enumerate(orders):
            free = 0.0
            for position, action in enumerate(order):
                if (receiver := target(k, action)) is not None:
                    begin = max(free, ends[k][position])
                    free = begin + num_bits(action) / rates[k]
                    coming[receiver].append(Sent(begin + latency_s, -k, position, free + latency_s))
        arrived = {}
        for receiver, messages in enumerate(coming):
            free = 0.0
            for each in sorted(messages):
                action = orders[-each.sender][each.position]
                free = max(free, each.first_s) + num_bits(action) / rates[receiver]
                arrived[-each.sender, each.position] = max(free, each.last_s)
        return arrived

    arrived: dict[tuple[int, int], float] = {}
    while (found := arrivals_of(ends_of(arrived))) != arrived:
        arrived = found
    ends = ends_of(arrived)
    return [
        [(KINDS[a.kind], a.number, ends[k][position]) for position, a in enumerate(order)]
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
