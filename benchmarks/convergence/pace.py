"""How much sooner a schedule makes its steps, on stages with a fixed wait and slow links.

Not run: the exact time model (`ravnest.planning.timing`), whose figures `benchmarks.pipeline` and
`benchmarks.unequal` hold against real processes with such stages.
"""

from __future__ import annotations

from dataclasses import replace

from ravnest.planning.timing.parts import LinkTime, PipelineTime, StageTime
from ravnest.planning.timing.slack import choose_slacks
from ravnest.planning.timing.steady import steady_state
from ravnest.stage.schedule import Schedule

STAGE_S = (0.030, 0.050, 0.040)
LINK_LATENCY_S = 0.050
NUM_MICROBATCHES = 1  # per step: the default, for whole batches
OTHER_NUMBERS = (3, 4, 8, 16)


def step_time_s(schedule: Schedule, num_microbatches: int = NUM_MICROBATCHES) -> float:
    """Seconds of an optimizer step of so many microbatches over three stages in the long run.

    With the slack that a plan gives these stages, memory being no limit.
    """
    stages = tuple(StageTime(forward_s=each / 3, backward_s=each * 2 / 3) for each in STAGE_S)
    link = LinkTime.between_equals(activation_s=0.0, gradient_s=0.0, latency_s=LINK_LATENCY_S)
    links = (link,) * (len(stages) - 1)
    pipeline = PipelineTime(schedule, num_microbatches, stages, links)
    slacks = choose_slacks(pipeline, lambda stage, slack: True)
    return steady_state(replace(pipeline, slacks=slacks)).step_time_s
