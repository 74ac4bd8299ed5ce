"""Steps of too few microbatches for all stages: neighbours share one, as evenly as can be."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.planning.timing.parts import LinkTime, PipelineTime, StageTime
from ravnest.planning.timing.short_steps import choose_short_steps
from ravnest.planning.timing.steady import steady_state
from ravnest.stage.actions import list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

seconds = st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0])
links = st.builds(LinkTime.between_equals, seconds, seconds, seconds)
passes = st.sampled_from([0.05, 0.1, 0.4])
stages = st.builds(StageTime, passes, passes, seconds)


@st.composite
def pipelines(draw: st.DrawFn) -> PipelineTime:
    size = draw(st.integers(2, 8))
    return PipelineTime(
        Schedule.TWO_BW,
        1,
        tuple(draw(stages) for _ in range(size)),
        tuple(draw(links) for _ in range(size - 1)),
    )


def pipeline(*passes_s: float, way_s: float = 0.0) -> PipelineTime:
    """One microbatch a step."""
    same = tuple(StageTime(each / 3, 2 * each / 3) for each in passes_s)
    ways = (LinkTime.between_equals(way_s, way_s, 0.0),) * (len(passes_s) - 1)
    return PipelineTime(Schedule.TWO_BW, 1, same, ways)


def starting(pipeline: PipelineTime, frequency: int) -> list[int]:
    return [each[frequency - 1] for each in choose_short_steps(pipeline)]


def step_s(pipeline: PipelineTime, numbers: list[int]) -> float:
    short = tuple((each,) * pipeline.update_frequency for each in numbers)
    return steady_state(replace(pipeline, short_steps=short)).step_time_s


def test_two_stages_have_enough_with_one_microbatch_a_step() -> None:
    assert choose_short_steps(pipeline(1.0, 1.0)) == ((), ())
    assert choose_short_steps(pipeline(1.0)) == ((),)


@pytest.mark.parametrize(
    ("passes_s", "expected", "period_s"),
    [
        ((1.0, 0.9, 0.2), [2, 1, 1], 1.1),  # the light leaf shares with the stem
        ((0.2, 0.9, 1.0), [2, 2, 1], 1.1),
        ((1.0, 1.0, 1.0, 1.0), [2, 2, 1, 1], 2.0),
        ((3.0, 1.0, 1.0, 1.0), [2, 1, 1, 1], 3.0),
    ],
)
def test_stages_share_as_evenly_as_can_be(
    passes_s: tuple[float, ...], expected: list[int], period_s: float
) -> None:
    uneven = pipeline(*passes_s)
    assert starting(uneven, 1) == expected
    assert step_s(uneven, expected) == pytest.approx(period_s)


def test_a_slow_link_within_a_group_counts() -> None:
    slow = replace(
        pipeline(1.0, 1.0, 1.0),
        links=(LinkTime.between_equals(0.0, 0.0, 0.0), LinkTime.between_equals(0.5, 0.5, 0.5)),
    )
    assert starting(slow, 1) == [2, 2, 1]


@given(pipelines())
def test_no_stage_starts_fewer_than_the_next_and_none_is_slower_for_it(
    pipeline: PipelineTime,
) -> None:
    size, chosen = len(pipeline.stages), choose_short_steps(pipeline)
    assert {len(each) for each in chosen} == {(size - 1) // 2}
    for frequency in range(1, (size - 1) // 2 + 1):
        numbers = [each[frequency - 1] for each in chosen]
        assert numbers[0] == 2 * frequency
        assert numbers[-1] == 1
        assert all(a - b in (0, 1) for a, b in itertools.pairwise(numbers))
        short = replace(pipeline, update_frequency=frequency)
        plain_s = steady_state(short).step_time_s
        assert step_s(short, numbers) <= plain_s * (1 + 1e-9)


@given(pipelines())
def test_one_microbatch_a_step_is_as_fast_as_any_sharing_makes_it(pipeline: PipelineTime) -> None:
    size = len(pipeline.stages)
    if size < 3:
        return
    every = [step_s(pipeline, [2] * k + [1] * (size - k)) for k in range(1, size)]
    assert step_s(pipeline, starting(pipeline, 1)) <= min(every) * (1 + 1e-9)


@given(pipelines(), st.integers(1, 3), st.integers(1, 20))
def test_they_apply_the_same_steps_to_the_same_versions(
    pipeline: PipelineTime, frequency: int, count: int
) -> None:
    size, chosen = len(pipeline.stages), choose_short_steps(pipeline)
    for stage in range(size):
        plain = StagePosition(Schedule.TWO_BW, stage, size, frequency)
        planned = replace(plain, short_steps=chosen[stage])
        assert planned.max_ahead <= plain.max_ahead
        for microbatch in range(count):
            assert planned.version_of(microbatch) == plain.version_of(microbatch)
        assert sorted(map(str, list_actions(planned, count))) == sorted(
            map(str, list_actions(plain, count))
        )
