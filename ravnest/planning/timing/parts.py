"""What the step time of a pipeline depends on: seconds of its passes and messages, as data."""

from __future__ import annotations

from dataclasses import dataclass

from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule


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
class MessageTime:
    """Seconds that a message takes on the links of its two ends, each at its own rate.

    Attributes:
        sending_s: that it occupies its sender's uplink.
        receiving_s: that it occupies its receiver's downlink.
    """

    sending_s: float
    receiving_s: float

    @property
    def seconds(self) -> float:
        """From its first byte to its last: as fast as the slower end."""
        return max(self.sending_s, self.receiving_s)

    def scaled(self, factor: float) -> MessageTime:
        """With both times multiplied."""
        return MessageTime(factor * self.sending_s, factor * self.receiving_s)


@dataclass(frozen=True, slots=True)
class LinkTime:
    """The way between a stage and the next, per microbatch.

    Attributes:
        activation: to the next stage.
        gradient: back.
        latency_s: one-way delay.
    """

    activation: MessageTime
    gradient: MessageTime
    latency_s: float

    @classmethod
    def between_equals(cls, activation_s: float, gradient_s: float, latency_s: float) -> LinkTime:
        """Between nodes whose links have the same rate."""
        activation = MessageTime(activation_s, activation_s)
        return cls(activation, MessageTime(gradient_s, gradient_s), latency_s)

    @property
    def both_ways_s(self) -> float:
        """From a stage to the next and back, computing aside."""
        return self.activation.seconds + self.gradient.seconds + 2 * self.latency_s

    def scaled(self, factor: float) -> LinkTime:
        """With all times multiplied."""
        return LinkTime(
            self.activation.scaled(factor), self.gradient.scaled(factor), factor * self.latency_s
        )


@dataclass(frozen=True, slots=True)
class ExchangeTime:
    """Parameters that an earlier stage owns and a later one uses, once per optimizer step.

    The holder sends their gradient after its last backward pass of the step, and the owner's step
    waits for it; the owner sends new values before the first microbatch that it computes with them,
    and the holder waits for them before that microbatch.

    Attributes:
        owner, holder: stages.
        values, gradient: from the owner to the holder, and back.
        latency_s: one-way delay.
    """

    owner: int
    holder: int
    values: MessageTime
    gradient: MessageTime
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

    @property
    def slowest_part_s(self) -> float:
        """Seconds per microbatch of what is busiest: a stage's computing, its uplink or downlink.

        No schedule is faster than that.
        """
        computing = [stage.forward_s + stage.backward_s for stage in self.stages]
        uplinks, downlinks = [0.0] * len(computing), [0.0] * len(computing)
        for k, link in enumerate(self.links):
            uplinks[k] += link.activation.sending_s
            downlinks[k + 1] += link.activation.receiving_s
            uplinks[k + 1] += link.gradient.sending_s
            downlinks[k] += link.gradient.receiving_s
        return max(*computing, *uplinks, *downlinks)
