"""More in flight where links delay: as much as fills them, as far as memory goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ravnest import clusterize
from ravnest.plan.model import Plan
from ravnest.planning.timing.parts import LinkTime, PipelineTime, StageTime
from ravnest.planning.timing.slack import choose_slacks
from ravnest.planning.timing.steady import steady_state
from ravnest.stage.schedule import Schedule

seconds = st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0])
links = st.builds(LinkTime.between_equals, seconds, seconds, seconds)
stages = st.builds(StageTime, st.sampled_from([0.05, 0.1, 0.4]), st.sampled_from([0.1, 0.5]))


def pipeline(latency_s: float, schedule: Schedule = Schedule.ASYNC) -> PipelineTime:
    """Three stages of 0.1 s and 8 microbatches a step."""
    same = (StageTime(0.04, 0.06),) * 3
    return PipelineTime(schedule, 8, same, (LinkTime.between_equals(0.01, 0.01, latency_s),) * 2)


def everything(stage: int, slacks: Sequence[int]) -> bool:
    return True


def test_without_delays_nothing_more_is_started() -> None:
    same = (StageTime(0.04, 0.06),) * 3
    assert choose_slacks(
        replace(pipeline(0.0), links=(LinkTime.between_equals(0, 0, 0),) * 2), everything
    ) == (*(0, 0, 0),)
    alone = PipelineTime(Schedule.ASYNC, 8, same[:1], ())
    assert choose_slacks(alone, everything) == (0,)


@pytest.mark.parametrize(
    ("schedule", "slacks", "step_s"),
    [
        # Both circles take 0.2 s of computing and 0.32 s on the way; the stages 0.1 s.
        (Schedule.ASYNC, (6, 3, 0), 0.835),  # 9 in flight at most, or gradients would be older
        (Schedule.TWO_BW, (6, 3, 0), 0.835),
        (Schedule.ONE_F_ONE_B, (5, 5, 0), 1.64),
    ],
)
def test_delays_are_hidden_behind_more_in_flight(
    schedule: Schedule, slacks: tuple[int, ...], step_s: float
) -> None:
    delayed = pipeline(0.15, schedule)
    assert choose_slacks(delayed, everything) == slacks
    assert steady_state(replace(delayed, slacks=slacks)).step_time_s == pytest.approx(
        step_s, rel=0.01
    )
    assert steady_state(delayed).step_time_s > 1.7 * step_s


def test_steps_of_many_microbatches_take_no_longer_than_the_stages() -> None:
    delayed = replace(pipeline(0.15), update_frequency=32)
    slacks = choose_slacks(delayed, everything)
    assert slacks == (10, 5, 0)
    assert steady_state(replace(delayed, slacks=slacks)).step_time_s == pytest.approx(3.2)


def test_what_does_not_fit_is_not_started() -> None:
    slacks = choose_slacks(pipeline(0.15), lambda stage, slacks: slacks[stage] <= (2, 9, 9)[stage])
    assert slacks == (2, 1, 0)
    assert choose_slacks(pipeline(0.15), lambda stage, slacks: slacks[stage] == 0) == (0, 0, 0)


def test_a_link_that_both_ways_share_is_kept_full() -> None:
    """Circles alone ask for nothing here: 0.12 s per microbatch, which the middle one's link is
    busy with, is as long as a circle takes with two in it. But messages wait for each other."""
    shared = PipelineTime(
        Schedule.ASYNC,
        8,
        tuple(StageTime(each / 3, 2 * each / 3) for each in (0.0153, 0.0229, 0.0457)),
        (LinkTime.between_equals(0.06, 0.06, 0.025),) * 2,
    )
    slacks = choose_slacks(shared, everything)
    assert any(slacks)
    full_s = 8 * (0.06 + 0.06)
    assert steady_state(shared).step_time_s > 1.2 * full_s
    assert steady_state(replace(shared, slacks=slacks)).step_time_s < 1.01 * full_s


@given(
    st.sampled_from(Schedule),
    st.integers(1, 9),
    st.integers(1, 5).flatmap(
        lambda n: st.tuples(
            st.tuples(*[stages] * n),
            st.tuples(*[links] * (n - 1)),
            st.tuples(*[st.integers(0, 6)] * n),
        )
    ),
)
def test_slack_makes_no_step_slower_and_no_stage_has_less_in_flight_than_the_next(
    schedule: Schedule,
    frequency: int,
    shape: tuple[tuple[StageTime, ...], tuple[LinkTime, ...], tuple[int, ...]],
) -> None:
    parts, between, most = shape
    frequency = max(frequency, len(parts)) if schedule is Schedule.TWO_BW else frequency
    plain = PipelineTime(schedule, frequency, parts, between)
    slacks = choose_slacks(plain, lambda stage, slacks: slacks[stage] <= most[stage])
    assert all(slack <= limit for slack, limit in zip(slacks, most, strict=True))
    deep = replace(plain, slacks=slacks)
    ahead = [deep.position(k).max_ahead for k in range(len(parts))]
    assert ahead == sorted(ahead, reverse=True)
    assert steady_state(deep).step_time_s <= steady_state(plain).step_time_s * (1 + 1e-9)


@pytest.fixture
def far_apart(tmp_path: Path, node_configs: Callable[..., Path]) -> Plan:
    """Two stages with so much delay between them that the first starts more than the least."""
    return clusterize(
        torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))),
        (torch.zeros(512, 256),),
        node_data=node_configs(tmp_path, 2, latency=300.0),
        num_clusters=1,
        schedule="async",
        update_frequency=8,
        dry_run=True,
    )


def test_what_a_node_needs_includes_what_it_starts_early(far_apart: Plan) -> None:
    assert far_apart.prediction is not None
    promised = {stage.node_id: stage for stage in far_apart.prediction.stages}
    assert promised[far_apart.clusters[0][0]].slack > 0
    assert all(
        each.needed_bytes == promised[each.node_id].memory.total for each in far_apart.stages
    )


def test_what_a_stage_starts_early_waits_at_the_next(far_apart: Plan) -> None:
    assert far_apart.prediction is not None
    promised = {stage.node_id: stage for stage in far_apart.prediction.stages}
    root, leaf = (promised[node] for node in far_apart.clusters[0])
    activation = 512 * 256 * 4
    # Its gradient, the one it sends, and what the root has computed and it has not begun.
    assert (root.slack > 0, leaf.slack) == (True, 0)
    assert leaf.memory.communication == activation * (1 + 1 + root.slack)
