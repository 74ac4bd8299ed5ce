"""The time model: how long an optimizer step of a pipeline takes, exactly, by its schedule.

A stage computes one thing at a time, in the order of `ravnest.stage.schedule`. A node's uplink
sends one message at a time, activations to the next node and gradients to the one before, in the
order in which they are made. Its downlink receives one message at a time from both neighbours, in
the order in which they begin to come, one delay after they began to be sent. A message is received
while it is sent: it has come when the slower of both ends is through with it. But for the order on
downlinks such a system is a timed event graph, linear over (max, +) (Baccelli et al.,
"Synchronization and Linearity", 1992): its completion times follow from each other, and in the long
run they repeat.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ravnest.planning.timing.parts import ExchangeTime, MessageTime, PipelineTime
from ravnest.stage.actions import Action, ActionKind, list_actions


def step_ends(pipeline: PipelineTime, num_steps: int) -> list[float]:
    """When the root completes each optimizer step."""
    run = _Run(pipeline, num_steps * pipeline.update_frequency)
    run.finish()
    return run.step_ends


class _Run:
    """One run; each stage goes on as far as what has arrived allows.

    Whatever a stage does after a message has come is no earlier than that message began to come. So
    messages taken in the order in which they begin to come find their receiver's downlink as those
    before have left it.
    """

    def __init__(self, pipeline: PipelineTime, num_microbatches: int) -> None:
        self.size = len(pipeline.stages)
        self.step_ends: list[float] = []
        self._stages, self._links = pipeline.stages, pipeline.links
        self._positions = [pipeline.position(k) for k in range(self.size)]
        self._actions = [_Peekable(list_actions(p, num_microbatches)) for p in self._positions]
        self._clock = [0.0] * self.size  # when a stage is free to compute
        self._uplink = [0.0] * self.size  # when its uplink is free
        self._downlink = [0.0] * self.size
        self._activations: list[list[float]] = [[] for _ in range(self.size)]  # arrivals, in order
        self._gradients: list[list[float]] = [[] for _ in range(self.size)]
        self._exchanges = [_Exchange(each) for each in pipeline.exchanges]
        self._frequency = pipeline.update_frequency
        self._coming: list[tuple[float, int, int, _Message]] = []  # a heap
        self._num_sent = 0

    def finish(self) -> None:
        """Runs until no message is on its way."""
        for stage in range(self.size):
            self._advance(stage)
        while self._coming:
            first_s, _, _, message = heapq.heappop(self._coming)
            free_s = max(self._downlink[message.target], first_s) + message.receiving_s
            self._downlink[message.target] = free_s
            message.arrivals.append(max(free_s, message.last_s))
            self._advance(message.target)

    def _advance(self, stage: int) -> None:
        """Does what the stage can do now."""
        actions = self._actions[stage]
        while (action := actions.next) is not None:
            arrived = self._arrival(stage, action)
            if arrived is None:
                return
            self._do(stage, action, max(self._clock[stage], arrived))
            actions.pop()

    def _arrival(self, stage: int, action: Action) -> float | None:
        """When all that an action takes has come; None when some of it has not begun to."""
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
                    link, arrivals = self._links[stage], self._activations[stage + 1]
                    self._send(stage, stage + 1, end, link.activation, link.latency_s, arrivals)
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
            time = each.time
            if time.owner == stage and each.is_new(version):
                self._send(stage, time.holder, ready, time.values, time.latency_s, each.values)
            if time.owner == stage:
                each.versions.append(each.num_versions - 1)

    def _send_gradient(self, stage: int, ready: float) -> None:
        if stage > 0:
            link, arrivals = self._links[stage - 1], self._gradients[stage - 1]
            self._send(stage, stage - 1, ready, link.gradient, link.latency_s, arrivals)

    def _complete(self, stage: int, microbatch: int, ready: float) -> None:
        """After the last backward pass of a step the gradients of replicas are sent."""
        if (microbatch + 1) % self._frequency != 0:
            return
        for each in self._exchanges:
            time = each.time
            if time.holder == stage:
                self._send(stage, time.owner, ready, time.gradient, time.latency_s, each.gradients)

    def _send(
        self,
        stage: int,
        target: int,
        ready: float,
        message: MessageTime,
        latency_s: float,
        arrivals: list[float],
    ) -> None:
        begin = max(self._uplink[stage], ready)
        sent = begin + message.sending_s
        self._uplink[stage] = sent
        self._num_sent += 1
        coming = _Message(target, message.receiving_s, sent + latency_s, arrivals)
        # Of those that begin to come at once, that of the last stage is the first.
        heapq.heappush(self._coming, (begin + latency_s, -stage, self._num_sent, coming))


class _Message(NamedTuple):
    """On its way; `last_s` is when the sender's last byte arrives, `arrivals` of its receiver."""

    target: int
    receiving_s: float
    last_s: float
    arrivals: list[float]


class _Exchange:
    """When the messages of an exchange arrive: gradients by step, values by version."""

    def __init__(self, time: ExchangeTime) -> None:
        self.time = time
        self.gradients: list[float] = []
        self.values: list[float] = []
        self.versions: list[int] = []  # what the owner sent for each microbatch, an index
        self.num_versions = 0
        self._newest = -1

    def is_new(self, version: int) -> bool:
        """Whether a version of the owner's weights has not been sent yet; from now on it has."""
        if version <= self._newest:
            return False
        self._newest = version
        self.num_versions += 1
        return True

    def values_for(self, microbatch: int) -> float | None:
        """When the values are there that the owner computed a microbatch with."""
        if microbatch >= len(self.versions):
            return None
        return _at(self.values, self.versions[microbatch])


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
