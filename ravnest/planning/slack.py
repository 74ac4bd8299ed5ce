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

from ravnest.planning.timing import PipelineTime, steady_state

WORTH = 0.01  # of the step's time
_COARSER = 1.03
_MAX_TRIES = 128
_MAX_AHEAD = 256
_MAX_TIMED = 64  # stages up to which the exact schedule says whether it is worth its memory


def choose_slacks(pipeline: PipelineTime, fits: Callable[[int, int], bool]) -> tuple[int, ...]:
    """The slack of every stage, see `StagePosition`; zeros where it makes no step faster.

    Args:
        pipeline: without slack.
        fits: whether a stage has memory for so much slack.
    """
    size = len(pipeline.stages)
    none = (0,) * size
    circles = _circles(pipeline)
    paced_s = _slowest_part(pipeline)
    if paced_s <= 0.0 or not circles:
        return none
    most = [_most_ahead(pipeline, stage) for stage in range(size)]
    for _ in range(_MAX_TRIES):
        ahead = _ahead(circles, paced_s)
        if pipeline.schedule.is_flushed:  # a step that is started whole waits for nothing
            ahead = [min(pair) for pair in zip(ahead, most, strict=True)]
        slacks = [max(0, in_flight - (size - stage)) for stage, in_flight in enumerate(ahead)]
        if not any(slacks):
            return none
        if all(
            not slack or (in_flight <= limit and fits(stage, slack))
            for stage, (slack, in_flight, limit) in enumerate(zip(slacks, ahead, most, strict=True))
        ):
            return tuple(slacks) if _is_worth_it(pipeline, slacks) else none
        paced_s *= _COARSER
    return none


def _is_worth_it(pipeline: PipelineTime, slacks: Sequence[int]) -> bool:
    if len(slacks) > _MAX_TIMED:
        return True
    before_s = steady_state(pipeline).step_time_s
    return steady_state(replace(pipeline, slacks=tuple(slacks))).step_time_s <= (
        (1.0 - WORTH) * before_s
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
        computing[k] + computing[k + 1] + link.activation_s + link.gradient_s + 2 * link.latency_s
        for k, link in enumerate(pipeline.links)
    ]


def _slowest_part(pipeline: PipelineTime) -> float:
    """Seconds per microbatch of the stage or uplink that takes longest."""
    computing = [stage.forward_s + stage.backward_s for stage in pipeline.stages]
    uplinks = [0.0] * len(computing)
    for k, link in enumerate(pipeline.links):
        uplinks[k] += link.activation_s
        uplinks[k + 1] += link.gradient_s
    return max(*computing, *uplinks)


def _most_ahead(pipeline: PipelineTime, stage: int) -> int:
    """What the schedule lets a stage have in flight, however much slack there is."""
    position = replace(pipeline.position(stage), slack=_MAX_AHEAD * len(pipeline.stages))
    return position.max_ahead
