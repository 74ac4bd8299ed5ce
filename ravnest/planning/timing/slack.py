"""How many microbatches a stage starts beyond the least, so that slow links are full as well.

With as many in flight as there are stages from here to the leaf, no stage is idle where all take as
long and nothing is delayed. A link delays both ways, and then what is in flight must cover that.

Between a stage and the next there is a circle of things that wait for each other: the forward pass
of a microbatch here and there, a backward pass there and here, and the next forward pass that it
makes room for. It takes both stages' passes and the way there and back; and with a and b in flight
here and there it lets a - b + 1 microbatches through. A pipeline is as slow as the slowest of its
circles (Baccelli et al., "Synchronization and Linearity", 1992), so each stage gets as many more in
flight than the next as keep its circle from being that. Not more: a stage that has to make too many
forward passes first waits for those of the stage before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ravnest.planning.timing.parts import PipelineTime
from ravnest.planning.timing.steady import steady_state

WORTH = 0.01  # of the step's time
# Messages and delays that slack is chosen for, over those planned: neighbours' messages share a
# link instead of taking turns, and no way is always equally long.
MARGIN = 1.3
_COARSER = 1.03
_MAX_TRIES = 128
_MAX_AHEAD = 256
_MAX_TIMED = 64  # stages up to which the exact schedule says whether it is worth its memory
_MAX_EAGER = 12  # stages up to which it also says whether more is
_EAGER = (0.85, 0.7, 0.55, 0.4)  # of the pace that circles are kept to


Fits = Callable[[int, Sequence[int]], bool]
"""Whether a stage has memory for what these slacks, of all stages, mean for it."""


def choose_slacks(pipeline: PipelineTime, fits: Fits) -> tuple[int, ...]:
    """The slack of every stage, see `StagePosition`; zeros where it makes no step faster.

    Args:
        pipeline: without slack.
        fits: see `Fits`.
    """
    size = len(pipeline.stages)
    none = (0,) * size
    paced_s = pipeline.slowest_part_s
    pipeline = replace(pipeline, links=tuple(link.scaled(MARGIN) for link in pipeline.links))
    circles = _circles(pipeline)
    if paced_s <= 0.0 or not circles:
        return none
    limits = [_most_ahead(pipeline, stage) for stage in range(size)]

    def slacks_for(step_s: float) -> tuple[int, ...] | None:
        return _slacks(pipeline, _ahead(circles, step_s), limits, fits)

    paces = (paced_s * _COARSER**tries for tries in range(_MAX_TRIES))
    least = next((found for each in paces if (found := slacks_for(each)) is not None), none)
    if size > _MAX_TIMED:
        return least
    eager = _EAGER if size <= _MAX_EAGER else ()
    more = (slacks_for(share * paced_s) for share in eager)
    return _least_worth(pipeline, [none, least, *(each for each in more if each is not None)])


def _slacks(
    pipeline: PipelineTime,
    ahead: Sequence[int],
    limits: Sequence[int],
    fits: Fits,
) -> tuple[int, ...] | None:
    """The slack that gives so many in flight; None where schedule or memory forbids it."""
    if pipeline.schedule.is_flushed:  # a step that is started whole waits for nothing
        ahead = [min(pair) for pair in zip(ahead, limits, strict=True)]
    size = len(pipeline.stages)
    slacks = tuple(max(0, each - (size - stage)) for stage, each in enumerate(ahead))
    is_allowed = all(
        not slack or in_flight <= limit
        for slack, in_flight, limit in zip(slacks, ahead, limits, strict=True)
    )
    # A stage holds its own, and those of the stage before that wait.
    touched = [k for k in range(size) if slacks[k] or (k and slacks[k - 1])]
    return slacks if is_allowed and all(fits(k, slacks) for k in touched) else None


def _least_worth(pipeline: PipelineTime, choices: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The first whose step is within `WORTH` of the fastest, by the exact schedule.

    What circles do not see is that a stage's messages both ways share its link: where that is
    nearly full, a little more in flight than they ask for keeps it so.
    """
    steps = [steady_state(replace(pipeline, slacks=each)).step_time_s for each in choices]
    fastest_s = min(steps)
    return next(
        slacks
        for slacks, step_s in zip(choices, steps, strict=True)
        if fastest_s > (1.0 - WORTH) * step_s
    )


def _ahead(circles: Sequence[float], paced_s: float) -> list[int]:
    """Microbatches in flight per stage, so that no circle takes longer than that per microbatch."""
    ahead = [1]
    for circle_s in reversed(circles):
        through = min(math.ceil(circle_s / paced_s - 1e-9), _MAX_AHEAD)
        ahead.append(ahead[-1] + max(1, through - 1))
    return ahead[::-1]


def _circles(pipeline: PipelineTime) -> list[float]:
    """Seconds around each link and the passes of its two stages."""
    computing = [stage.forward_s + stage.backward_s for stage in pipeline.stages]
    return [
        computing[k] + computing[k + 1] + link.both_ways_s for k, link in enumerate(pipeline.links)
    ]


def _most_ahead(pipeline: PipelineTime, stage: int) -> int:
    """What the schedule lets a stage have in flight, however much slack there is."""
    position = replace(pipeline.position(stage), slack=_MAX_AHEAD * len(pipeline.stages))
    return position.max_ahead
