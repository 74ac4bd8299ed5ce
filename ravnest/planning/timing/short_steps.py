"""How many microbatches stages start where a step has too few for all of them.

Under `2bw` no more than two steps' microbatches are in flight. With fewer than there are stages,
some neighbours must start as many as each other: such a group works on one microbatch at a time,
from its first forward pass to its last backward pass, and on the way between them. With a and b in
flight here and there, the link between two groups lets a - b + 1 microbatches through, so groups
work at the same time. A pipeline is as slow as its slowest circle (Baccelli et al.,
"Synchronization and Linearity", 1992): the groups are made as equal in time as they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ravnest.planning.timing.parts import PipelineTime
from ravnest.planning.timing.steady import steady_state
from ravnest.stage.schedule import Schedule

_MAX_TIMED = 12  # stages up to which the exact schedule has the last word


def choose_short_steps(pipeline: PipelineTime) -> tuple[tuple[int, ...], ...]:
    """Per stage the microbatches it starts where a step has 1, 2, ... of them.

    Empty tuples where two microbatches are enough for all stages. No stage has fewer than the next,
    whatever a step has, so they cannot wait for each other.

    Args:
        pipeline: of any schedule; its passes and links count.
    """
    size = len(pipeline.stages)
    starts = _starts(_parts(pipeline))
    chosen = []
    frequency = 1
    while Schedule.TWO_BW.is_short(size, frequency):
        chosen.append(_chosen(pipeline, frequency, starts))
        frequency += 1
    return tuple(tuple(each[stage] for each in chosen) for stage in range(size))


def _chosen(
    pipeline: PipelineTime, frequency: int, starts: Sequence[Sequence[int]]
) -> Sequence[int]:
    """Per stage the microbatches it starts where a step has so many."""
    size, count = len(pipeline.stages), 2 * frequency
    grouped: list[int] = []
    for left in range(1, count + 1):
        after = size - len(grouped)
        grouped += [left] * (after - starts[count + 1 - left][after])
    grouped.reverse()
    if size > _MAX_TIMED:
        return grouped
    # What groups have in flight together, and ways that overlap with passes, are not all told by
    # the groups' own times.
    if frequency == 1:
        others = [[2] * first + [1] * (size - first) for first in range(1, size)]
    else:
        others = [[min(count, size - stage) for stage in range(size)]]
    return min(grouped, *others, key=lambda each: _step_s(pipeline, frequency, each))


def _step_s(pipeline: PipelineTime, frequency: int, starting: Sequence[int]) -> float:
    short = tuple((each,) * frequency for each in starting)
    two_bw = replace(
        pipeline, schedule=Schedule.TWO_BW, update_frequency=frequency, short_steps=short
    )
    return steady_state(two_bw).step_time_s


def _parts(pipeline: PipelineTime) -> list[tuple[float, float]]:
    """Per stage the seconds that a microbatch takes it, with a step, and on the way to the next."""
    computing = [each.forward_s + each.backward_s + each.update_s for each in pipeline.stages]
    ways = [each.both_ways_s for each in pipeline.links]
    return list(zip(computing, [*ways, 0.0], strict=True))


def _starts(parts: Sequence[tuple[float, float]]) -> list[list[int]]:
    """By a number of groups and what stages they end before, where the last of them begins.

    The slowest group is as fast as can be: the classic programme of the linear partition problem
    (Skiena, "The Algorithm Design Manual"). Of several, the last groups are as large as can be.
    """
    size = len(parts)
    slowest = [[float("inf")] * (size + 1) for _ in range(size + 1)]
    starts = [[0] * (size + 1) for _ in range(size + 1)]
    slowest[0][0] = 0.0
    for number in range(1, size + 1):
        for after in range(number, size + 1):
            group_s = -parts[after - 1][1]  # the way out of the group is not within it
            for first in range(after - 1, number - 2, -1):
                group_s += sum(parts[first])
                worst_s = max(slowest[number - 1][first], group_s)
                if worst_s <= slowest[number][after]:
                    slowest[number][after], starts[number][after] = worst_s, first
    return starts
