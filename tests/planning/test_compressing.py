"""What `compression="auto"` chooses: the mildest codec that a link needs, and none where none."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.planning.compressing import (
    TOLERANCE,
    RawLink,
    choose_compressions,
    ratios_of,
)
from ravnest.planning.timing.parts import LinkTime, PipelineTime, StageTime
from ravnest.planning.timing.steady import steady_state
from ravnest.stage.schedule import Schedule

MILD_TO_STRONG = ("none", "fp16", "int8")
STAGE = StageTime(0.03, 0.06)
MB = 1e6


def pipeline(num_stages: int, schedule: Schedule = Schedule.ASYNC) -> PipelineTime:
    return PipelineTime(
        schedule,
        8,
        (STAGE,) * num_stages,
        (LinkTime.between_equals(0.0, 0.0, 0.0),) * (num_stages - 1),
    )


def link(seconds_each_way: float) -> RawLink:
    return RawLink(MB, MB, (MB / seconds_each_way,) * 2, 0.01)


def names(*links: RawLink, schedule: Schedule = Schedule.ASYNC) -> list[str]:
    chosen = choose_compressions(pipeline(len(links) + 1, schedule), links)
    return [each.name for each in chosen]


def test_a_link_that_computing_hides_is_left_alone() -> None:
    assert names(link(0.005)) == ["none"]
    assert names(link(1e-6), schedule=Schedule.ONE_F_ONE_B) == ["none"]


def test_the_mildest_codec_that_ends_the_bottleneck_is_chosen() -> None:
    assert names(link(0.03)) == ["fp16"]
    assert names(link(0.3)) == ["int8"]
    found = names(link(30.0), link(30.0))
    assert "int8" in found
    assert set(found) <= set(MILD_TO_STRONG), "never 4 bits, which nobody asked for"


def test_a_codec_for_activations_does_not_help_where_gradients_are_the_limit() -> None:
    # Between two stages each direction is an uplink's own; both names halve the gradients.
    assert names(link(30.0)) == ["fp16"]


def test_only_the_slow_link_is_compressed() -> None:
    assert names(link(0.001), link(0.03)) == ["none", "fp16"]
    assert names(link(0.3), link(0.001), link(0.001)) == ["int8", "none", "none"]


def test_a_codec_that_costs_more_than_it_saves_is_not_chosen() -> None:
    quick = PipelineTime(
        Schedule.ASYNC, 8, (StageTime(1e-5, 2e-5),) * 2, (LinkTime.between_equals(0.0, 0.0, 0.0),)
    )
    ten_gbps = RawLink(MB, MB, (1.25e9, 1.25e9), 0.0)
    assert [each.name for each in choose_compressions(quick, [ten_gbps])] == ["none"]


def test_one_stage_has_nothing_to_compress() -> None:
    assert choose_compressions(pipeline(1), []) == ()


def test_long_chains_are_chosen_by_the_busiest_part() -> None:
    links = [link(0.001)] * 30
    links[7] = link(0.15)
    found = names(*links)
    assert found[7] == "fp16"
    assert set(found) == {"none", "fp16"}


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.floats(1e-4, 2.0), min_size=1, max_size=2),
    st.sampled_from([Schedule.ONE_F_ONE_B, Schedule.ASYNC, Schedule.ZB_H1]),
)
def test_no_link_is_compressed_for_nothing(seconds: list[float], schedule: Schedule) -> None:
    links = [link(each) for each in seconds]
    base = pipeline(len(links) + 1, schedule)
    chosen = choose_compressions(base, links)
    assert chosen == choose_compressions(base, links)

    def step_s(levels: list[str]) -> float:
        times = []
        for raw, name in zip(links, levels, strict=True):
            times.append(raw.timed(*ratios_of(name)))
        timed = PipelineTime(base.schedule, 8, base.stages, tuple(times))
        return steady_state(timed).step_time_s

    found = [each.name for each in chosen]
    strongest_s = step_s(["int8"] * len(links))
    # What the codecs cost the processors is not counted here; it is 3 ms a pass at most.
    slack_s = 8 * 2 * 0.004
    assert step_s(found) <= (1 + TOLERANCE) * strongest_s + slack_s
    for index, name in enumerate(found):
        if name != "none":
            milder = MILD_TO_STRONG[MILD_TO_STRONG.index(name) - 1]
            alone = [*found[:index], milder, *found[index + 1 :]]
            assert step_s(alone) > step_s(found) - slack_s


def test_reasons_name_what_was_compared() -> None:
    fast, slow = choose_compressions(pipeline(3), [link(0.001), link(0.03)])
    assert "s with none here" in fast.reason
    assert "s with fp16 here" in slow.reason
    assert slow.reason.endswith("s with int8 on every link")
    (idle,) = choose_compressions(pipeline(2), [link(1e-6)])
    assert idle.reason == (
        "sending over all links takes 2e-06 s per microbatch, the slowest stage 0.09 s"
    )
