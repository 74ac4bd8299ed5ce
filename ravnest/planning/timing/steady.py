"""How a pipeline goes in the long run, and what a little more speed of would make it faster."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ravnest.planning.timing.parts import PipelineTime
from ravnest.planning.timing.run import step_ends

_FLUSHED_STEPS = 4  # with a flush every step starts from rest, so the second one is like the rest
_MAX_STEPS = 96
_MAX_SENSITIVE = 12  # stages up to which the bottleneck is found by trying what each part costs
_FASTER = 0.9
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class SteadyState:
    """How a pipeline goes in the long run.

    Attributes:
        step_time_s: seconds per optimizer step.
        busy: per stage the share of the time in which it computes.
    """

    step_time_s: float
    busy: tuple[float, ...]

    @property
    def bubble(self) -> float:
        """Share of the time that a node waits, on average over the nodes."""
        return 1.0 - sum(self.busy) / len(self.busy)


def steady_state(pipeline: PipelineTime) -> SteadyState:
    """Runs the schedule until it repeats.

    With a flush it repeats at once; without one after several steps, not always every one; the
    period found is exact where it repeats within the steps looked at, else an average.
    """
    step_s = _step_time(pipeline)
    frequency = pipeline.update_frequency
    work = [
        frequency * (each.forward_s + each.backward_s) + each.update_s for each in pipeline.stages
    ]
    return SteadyState(step_s, tuple(each / step_s if step_s > 0 else 0.0 for each in work))


def bottleneck(pipeline: PipelineTime) -> tuple[int, bool]:
    """What a little more speed of would save the most: a stage's computing, or a link.

    Returns:
        Index of the stage, or of the link by its first stage; and whether it is a link.
    """
    candidates = [(k, False) for k in range(len(pipeline.stages))]
    candidates += [(k, True) for k in range(len(pipeline.links))]
    if len(pipeline.stages) > _MAX_SENSITIVE:
        return max(candidates, key=lambda part: (_seconds_of(pipeline, part), not part[1]))
    return min(candidates, key=lambda part: (_step_time(_faster(pipeline, part)), part[1], part[0]))


def _seconds_of(pipeline: PipelineTime, part: tuple[int, bool]) -> float:
    index, is_link = part
    if is_link:
        link = pipeline.links[index]
        return link.activation.seconds + link.gradient.seconds
    return pipeline.stages[index].forward_s + pipeline.stages[index].backward_s


def _faster(pipeline: PipelineTime, part: tuple[int, bool]) -> PipelineTime:
    index, is_link = part
    if is_link:
        links = list(pipeline.links)
        links[index] = links[index].scaled(_FASTER)
        return replace(pipeline, links=tuple(links))
    stages = list(pipeline.stages)
    was = stages[index]
    stages[index] = replace(
        was,
        forward_s=_FASTER * was.forward_s,
        backward_s=_FASTER * was.backward_s,
        update_s=_FASTER * was.update_s,
        weight_s=_FASTER * was.weight_s,
    )
    return replace(pipeline, stages=tuple(stages))


def _step_time(pipeline: PipelineTime) -> float:
    size = len(pipeline.stages)
    if size == 1:
        stage = pipeline.stages[0]
        computing = pipeline.update_frequency * (stage.forward_s + stage.backward_s)
        return computing + stage.update_s
    if pipeline.schedule.is_flushed:
        ends = step_ends(pipeline, _FLUSHED_STEPS)
        return ends[-1] - ends[-2]
    drain = -(-size // pipeline.update_frequency)  # the last steps run ahead: nothing follows them
    ends = step_ends(pipeline, min(_MAX_STEPS, 8 * size) + drain)[:-drain]
    return _long_run([later - earlier for earlier, later in itertools.pairwise(ends)])


def _long_run(steps: Sequence[float]) -> float:
    """Mean of the shortest pattern that the second half of the steps repeats; its mean else.

    All of that half has to repeat it: a pattern of six may well have five alike in a row.
    """
    half = steps[len(steps) // 2 :]
    for length in range(1, len(half) // 2 + 1):
        repeats = zip(half, half[length:], strict=False)
        if all(abs(a - b) <= _SAME * max(a, b) for a, b in repeats):
            return sum(half[-length:]) / length
    return sum(half) / len(half)
