"""Schedules as data: orders, bounds, completeness, and no deadlock between stages."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.errors import ConfigError
from ravnest.stage.actions import Action, ActionKind, Progress, list_actions, next_action
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

EXTRA = st.integers(0, 12)  # microbatches that a stage may start beyond the least
positions = st.tuples(st.sampled_from(Schedule), st.integers(1, 8), st.integers(1, 9))


def listed(
    schedule: Schedule, stage: int, stages: int, frequency: int, count: int, slack: int = 0
) -> str:
    position = StagePosition(schedule, stage, stages, frequency, slack)
    return " ".join(map(str, list_actions(position, count)))


def test_1f1b_of_three_stages_is_the_published_order() -> None:
    orders = [listed(Schedule.ONE_F_ONE_B, stage, 3, 4, 4) for stage in range(3)]
    assert orders == [
        "F0 F1 F2 B0 F3 B1 B2 B3 S0",
        "F0 F1 B0 F2 B1 F3 B2 B3 S0",
        "F0 B0 F1 B1 F2 B2 F3 B3 S0",
    ]


def test_slack_starts_microbatches_earlier_and_applies_the_same_steps() -> None:
    flushed, endless = Schedule.ONE_F_ONE_B, Schedule.ASYNC
    assert listed(flushed, 1, 3, 4, 4, slack=1) == "F0 F1 F2 B0 F3 B1 B2 B3 S0"
    assert listed(flushed, 1, 3, 2, 4, slack=9) == "F0 F1 B0 B1 S0 F2 F3 B2 B3 S1"
    assert listed(endless, 0, 2, 3, 5, slack=1) == "F0 F1 F2 B0 F3 B1 F4 B2 S0 B3 B4 S1"
    # Not where it would make a gradient older, and not on a leaf, which awaits none.
    assert listed(endless, 0, 2, 1, 3, slack=5) == listed(endless, 0, 2, 1, 3)
    assert listed(flushed, 2, 3, 4, 4, slack=5) == listed(flushed, 2, 3, 4, 4)


@given(positions, st.lists(st.integers(0, 4), min_size=8, max_size=8))
def test_slack_that_was_planned_for_other_runs_keeps_a_stage_ahead_of_the_next(
    shape: tuple[Schedule, int, int], more: list[int]
) -> None:
    """Where two stages start equally many, every microbatch waits for a whole way around."""
    schedule, stages, frequency = shape
    slacks = list(itertools.accumulate(more[: stages - 1], initial=0))[::-1]
    places = [StagePosition(schedule, k, stages, frequency, each) for k, each in enumerate(slacks)]
    plain = [replace(each, slack=0).max_ahead for each in places]
    ahead = [each.max_ahead for each in places]
    for k in range(stages - 1):
        assert ahead[k] - ahead[k + 1] >= min(1, plain[k] - plain[k + 1])
        assert ahead[k] >= plain[k]


def test_async_does_not_flush_between_steps() -> None:
    assert listed(Schedule.ASYNC, 0, 2, 2, 5) == "F0 F1 B0 F2 B1 S0 F3 B2 F4 B3 S1 B4 S2"
    assert listed(Schedule.ASYNC, 1, 2, 2, 5) == "F0 B0 F1 B1 S0 F2 B2 F3 B3 S1 F4 B4 S2"


def test_zero_bubble_of_three_stages_is_the_published_order() -> None:
    """ZB-H1: a stage is as many weight passes behind as there are stages before it."""
    orders = [listed(Schedule.ZB_H1, stage, 3, 4, 4) for stage in range(3)]
    assert orders == [
        "F0 F1 F2 B0 F3 B1 B2 B3 S0",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3 S0",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3 S0",
    ]


def test_1f1b_flushes_between_steps() -> None:
    assert listed(Schedule.ONE_F_ONE_B, 0, 2, 1, 2) == "F0 B0 S0 F1 B1 S1"


@given(positions, st.integers(0, 25), st.data())
def test_every_microbatch_is_trained_once_and_applied(
    shape: tuple[Schedule, int, int], count: int, data: st.DataObject
) -> None:
    schedule, stages, frequency = shape
    stage = data.draw(st.integers(0, stages - 1))
    position = StagePosition(schedule, stage, stages, frequency, data.draw(EXTRA))
    actions = list(list_actions(position, count))
    splits = position.splits_backward
    passes = [ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT]
    if not splits:
        passes = [ActionKind.BACKWARD]
    for kind in (ActionKind.FORWARD, *passes):
        assert [a.number for a in actions if a.kind is kind] == list(range(count))
    assert {a.kind for a in actions} <= {ActionKind.FORWARD, ActionKind.STEP, *passes}
    assert sum(a.kind is ActionKind.STEP for a in actions) == -(-count // frequency)
    in_flight = ahead = 0
    for action in actions:
        in_flight += {ActionKind.FORWARD: 1, passes[-1]: -1}.get(action.kind, 0)
        ahead += {ActionKind.FORWARD: 1, passes[0]: -1}.get(action.kind, 0)
        assert 0 <= ahead <= position.max_ahead
        assert in_flight - ahead - (action.kind is passes[0]) <= position.max_behind
        assert ahead <= in_flight <= position.max_in_flight
        if action.kind is ActionKind.STEP and schedule.is_flushed:
            assert in_flight == 0


@given(
    positions,
    st.integers(0, 25),
    st.lists(st.integers(-1, 4), min_size=8, max_size=8),
    st.none() | st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_stages_that_wait_for_each_other_never_lock_up(
    shape: tuple[Schedule, int, int], count: int, more: list[int], rises: list[bool] | None
) -> None:
    """Every stage runs its own order; a receive waits for the neighbour's send."""
    schedule, stages, frequency = shape
    # From the leaf to the root; no stage has less in flight than the next.
    slacks = [max(0, each) for each in itertools.accumulate(more[: stages - 1], initial=0)][::-1]
    shorts: list[tuple[int, ...]] = [()] * stages
    if rises is not None:
        from_leaf = itertools.accumulate(rises[: stages - 1], initial=1)
        shorts = [(each,) * frequency for each in from_leaf][::-1]
    orders = [
        list(list_actions(StagePosition(schedule, stage, stages, frequency, slack, short), count))
        for stage, (slack, short) in enumerate(zip(slacks, shorts, strict=True))
    ]
    done = [0] * stages
    sent_forward, sent_backward = [count] + [0] * stages, [0] * stages + [count]
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(orders):
            if done[stage] == len(order):
                continue
            action = order[done[stage]]
            if action.kind is ActionKind.FORWARD and sent_forward[stage] <= action.number:
                continue
            leaf = stage == stages - 1
            returns = action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
            awaits_gradient = returns and not leaf
            if awaits_gradient and sent_backward[stage + 1] <= action.number:
                continue
            if action.kind is ActionKind.FORWARD:
                sent_forward[stage + 1] = action.number + 1
            elif returns:
                sent_backward[stage] = action.number + 1
            done[stage] += 1
            moved = True
    assert done == [len(order) for order in orders]


@given(positions, st.integers(0, 25), st.data())
def test_an_end_that_is_learnt_late_changes_nothing(
    shape: tuple[Schedule, int, int], count: int, data: st.DataObject
) -> None:
    """The executor learns the number of microbatches only when no further one comes."""
    schedule, stages, frequency = shape
    stage = data.draw(st.integers(0, stages - 1))
    position = StagePosition(schedule, stage, stages, frequency, data.draw(EXTRA))
    actions: list[Action] = []
    progress = Progress()
    while (action := next_action(position, progress)) is not None:
        if action.kind is ActionKind.FORWARD and action.number == count:
            progress = replace(progress, total=count)
            continue
        actions.append(action)
        progress = progress.after(action)
    assert actions == list(list_actions(position, count))


def test_an_unknown_schedule_is_named_with_the_choices() -> None:
    with pytest.raises(ConfigError, match="schedule='gpipe' is unknown; expected one of '1f1b'"):
        Schedule.parse("gpipe")


@given(positions, st.integers(0, 25), st.data())
def test_every_gradient_has_the_age_that_the_schedule_promises(
    shape: tuple[Schedule, int, int], count: int, data: st.DataObject
) -> None:
    """`version_of` against the order itself; versions exist, and none is needed that is gone."""
    schedule, stages, frequency = shape
    stage = data.draw(st.integers(0, stages - 1))
    position = StagePosition(schedule, stage, stages, frequency, data.draw(EXTRA))
    steps = 0
    for action in list_actions(position, count):
        if action.kind is ActionKind.FORWARD:
            version = position.version_of(action.number)
            kept = 1 if schedule.delays(stages) else 0
            assert max(steps - kept, 0) <= version <= steps
            staleness = action.number // frequency - version
            assert 0 <= staleness <= position.max_staleness
            assert position.max_staleness == replace(position, slack=0).max_staleness
        steps += action.kind is ActionKind.STEP


@given(st.integers(2, 8), st.integers(1, 9), st.integers(1, 60))
def test_2bw_delays_every_step_but_the_first_by_one_on_all_stages(
    stages: int, frequency: int, count: int
) -> None:
    for stage in range(stages):
        position = StagePosition(Schedule.TWO_BW, stage, stages, frequency)
        ages = [i // frequency - position.version_of(i) for i in range(count)]
        assert ages == [int(i >= frequency) for i in range(count)]


def test_2bw_goes_on_over_steps_without_a_flush() -> None:
    assert listed(Schedule.TWO_BW, 0, 2, 2, 5) == "F0 F1 B0 F2 B1 S0 F3 B2 F4 B3 S1 B4 S2"
    # With fewer microbatches than stages it has to wait for the weights it needs.
    assert listed(Schedule.TWO_BW, 0, 4, 1, 3) == "F0 F1 B0 S0 F2 B1 S1 B2 S2"
