"""The time model: how long an optimizer step of a pipeline takes, exactly, by its schedule.

A stage computes one thing at a time, in the order of `ravnest.stage.schedule`. A node's uplink
sends one message at a time, activations to the next node and gradients to the one before, in the
order in which they are made; a message arrives one delay after it has been sent. Receiving is free,
as links are full duplex and the sender already goes at the rate of the slower end. Such a system is
a timed event graph, linear over (max, +) (Baccelli et al., "Synchronization and Linearity", 1992):
its completion times follow from each other, and in the long run they repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ravnest.stage.schedule import Action, ActionKind, Schedule, StagePosition, list_actions

_FLUSHED_STEPS = 4  # with a flush every step starts from rest, so the second one is like the rest
_MAX_STEPS = 96
_MAX_SENSITIVE = 12  # stages up to which the bottleneck is found by trying what each part costs
_FASTER = 0.9
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds that a stage computes.

    Attributes:
        forward_s: forward pass of one microbatch.
        backward_s: backward pass of one microbatch, recomputation included.
        update_s: one optimizer step.
        weight_s: the part of `backward_s` that is for gradients of weights, where the schedule
            computes them apart.
    """

    forward_s: float
    backward_s: float
    update_s: float = 0.0
    weight_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkTime:
    """Seconds on the way between a stage and the next, per microbatch.

    Attributes:
        activation_s: sending activations to the next stage, at the rate of the slower end.
        gradient_s: sending gradients back, likewise.
        latency_s: one-way delay.
    """

    activation_s: float
    gradient_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """Parameters that an earlier stage owns and a later one uses, once per optimizer step.

    The holder sends their gradient after its last backward pass of the step, and the owner's step
    waits for it; the owner sends new values before the first microbatch that it computes with them,
    and the holder waits for them before that microbatch.

    Attributes:
        owner, holder: stages.
        seconds: sending either.
        latency_s: one-way delay.
    """

    owner: int
    holder: int
    seconds: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class PipelineTime:
    """Everything that the step time of a cluster depends on.

    Attributes:
        stages: from root to leaf.
        links: between stages k and k + 1; one fewer.
        update_frequency: microbatches per optimizer step.
        exchanges: of parameters that several stages use.
        slacks: per stage, see `StagePosition`; empty for none.
        short_steps: likewise.
    """

    schedule: Schedule
    update_frequency: int
    stages: tuple[StageTime, ...]
    links: tuple[LinkTime, ...]
    exchanges: tuple[ExchangeTime, ...] = ()
    slacks: tuple[int, ...] = ()
    short_steps: tuple[tuple[int, ...], ...] = ()

    def position(self, stage: int) -> StagePosition:
        """What the order of a stage's actions depends on."""
        slack = self.slacks[stage] if self.slacks else 0
        short = self.short_steps[stage] if self.short_steps else ()
        return StagePosition(
            self.schedule, stage, len(self.stages), self.update_frequency, slack, short
        )


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
        return link.activation_s + link.gradient_s
    return pipeline.stages[index].forward_s + pipeline.stages[index].backward_s


def _faster(pipeline: PipelineTime, part: tuple[int, bool]) -> PipelineTime:
    index, is_link = part
    if is_link:
        links = list(pipeline.links)
        old = links[index]
        links[index] = LinkTime(
            _FASTER * old.activation_s, _FASTER * old.gradient_s, _FASTER * old.latency_s
        )
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
        ends = _step_ends(pipeline, _FLUSHED_STEPS)
        return ends[-1] - ends[-2]
    drain = -(-size // pipeline.update_frequency)  # the last steps run ahead: nothing follows them
    ends = _step_ends(pipeline, min(_MAX_STEPS, 8 * size) + drain)[:-drain]
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


def _step_ends(pipeline: PipelineTime, num_steps: int) -> list[float]:
    """When the root completes each optimizer step."""
    run = _Run(pipeline, num_steps * pipeline.update_frequency)
    waiting = list(range(run.size))
    while waiting:
        waiting = [stage for stage in waiting if not run.advance(stage)]
    return run.step_ends


class _Run:
    """One run; each stage goes on as far as what has arrived allows."""

    def __init__(self, pipeline: PipelineTime, num_microbatches: int) -> None:
        self.size = len(pipeline.stages)
        self.step_ends: list[float] = []
        self._stages, self._links = pipeline.stages, pipeline.links
        self._positions = [pipeline.position(k) for k in range(self.size)]
        self._actions = [_Peekable(list_actions(p, num_microbatches)) for p in self._positions]
        self._clock = [0.0] * self.size  # when a stage is free to compute
        self._uplink = [0.0] * self.size  # when its uplink is free
        self._activations: list[list[float]] = [[] for _ in range(self.size)]  # arrivals, in order
        self._gradients: list[list[float]] = [[] for _ in range(self.size)]
        self._exchanges = [_Exchange(each) for each in pipeline.exchanges]
        self._frequency = pipeline.update_frequency

    def advance(self, stage: int) -> bool:
        """Does what the stage can do now; True when it has done everything."""
        actions = self._actions[stage]
        while (action := actions.next) is not None:
            arrived = self._arrival(stage, action)
            if arrived is None:
                return False
            self._do(stage, action, max(self._clock[stage], arrived))
            actions.pop()
        return True

    def _arrival(self, stage: int, action: Action) -> float | None:
        """When all that an action takes has come; None when some of it is not on its way yet."""
        needed: list[float | None] = [0.0]
        if action.kind is ActionKind.FORWARD:
            if stage > 0:
                needed.append(_at(self._activations[stage], action.number))
            held = (each for each in self._exchanges if each.time.holder == stage)
            needed += [each.values_for(action.number) for each in held]
        elif action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT):
            if stage + 1 < self.size:
                needed.append(_at(self._gradients[stage], action.number))
        elif action.kind is ActionKind.STEP:
            owned = (each for each in self._exchanges if each.time.owner == stage)
            needed += [_at(each.gradients, action.number) for each in owned]
        known = [each for each in needed if each is not None]
        return max(known) if len(known) == len(needed) else None

    def _do(self, stage: int, action: Action, start: float) -> None:
        time = self._stages[stage]
        match action.kind:
            case ActionKind.FORWARD:
                end = start + time.forward_s
                self._send_values(stage, action.number, start)
                if stage + 1 < self.size:
                    link = self._links[stage]
                    sent = self._send(stage, end, link.activation_s)
                    self._activations[stage + 1].append(sent + link.latency_s)
            case ActionKind.BACKWARD:
                end = start + time.backward_s
                self._send_gradient(stage, end)
                self._complete(stage, action.number, end)
            case ActionKind.BACKWARD_INPUT:
                end = start + time.backward_s - time.weight_s
                self._send_gradient(stage, end)
            case ActionKind.BACKWARD_WEIGHT:
                end = start + time.weight_s
                self._complete(stage, action.number, end)
            case ActionKind.STEP:
                end = start + time.update_s
                if stage == 0:
                    self.step_ends.append(end)
        self._clock[stage] = end

    def _send_values(self, stage: int, microbatch: int, ready: float) -> None:
        version = self._positions[stage].version_of(microbatch)
        for each in self._exchanges:
            if each.time.owner == stage:
                if not each.versions or version > each.versions[-1]:
                    sent = self._send(stage, ready, each.time.seconds)
                    each.values[version] = sent + each.time.latency_s
                each.versions.append(version)

    def _send_gradient(self, stage: int, ready: float) -> None:
        if stage > 0:
            link = self._links[stage - 1]
            sent = self._send(stage, ready, link.gradient_s)
            self._gradients[stage - 1].append(sent + link.latency_s)

    def _complete(self, stage: int, microbatch: int, ready: float) -> None:
        """After the last backward pass of a step the gradients of replicas are sent."""
        if (microbatch + 1) % self._frequency != 0:
            return
        for each in self._exchanges:
            if each.time.holder == stage:
                sent = self._send(stage, ready, each.time.seconds)
                each.gradients.append(sent + each.time.latency_s)

    def _send(self, stage: int, ready: float, seconds: float) -> float:
        sent = max(self._uplink[stage], ready) + seconds
        self._uplink[stage] = sent
        return sent


class _Exchange:
    """When the messages of an exchange arrive: gradients by step, values by version."""

    def __init__(self, time: ExchangeTime) -> None:
        self.time = time
        self.gradients: list[float] = []
        self.values: dict[int, float] = {}
        self.versions: list[int] = []  # of the owner's weights, by microbatch

    def values_for(self, microbatch: int) -> float | None:
        """When the values are there that the owner computed a microbatch with."""
        if microbatch >= len(self.versions):
            return None
        return self.values[self.versions[microbatch]]


def _at(arrivals: Sequence[float], number: int) -> float | None:
    return arrivals[number] if number < len(arrivals) else None


class _Peekable:
    """An iterator of actions whose next one can be looked at."""

    def __init__(self, actions: Iterator[Action]) -> None:
        self._actions = actions
        self.next = next(actions, None)

    def pop(self) -> None:
        """Goes on to the next action."""
        self.next = next(self._actions, None)
