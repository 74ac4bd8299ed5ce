"""Pipeline schedules as data: which action a stage does next, from counts alone.

An order is fixed by the schedule, never by arrival, so a second run repeats the first bit for bit.
Knows no tensors and no network; the executor feeds `Progress` back after every action.

Sources: 1F1B is PipeDream-flush and 2BW is PipeDream-2BW (both Narayanan et al. 2021,
"Memory-Efficient Pipeline-Parallel DNN Training"); `async` is PipeDream's steady state (Narayanan
et al. 2019) without a flush, with the weights of the forward pass stashed for the backward pass;
ZB-H1 is Qi et al. 2024, "Zero Bubble Pipeline Parallelism".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ravnest.errors import ConfigError


class Schedule(StrEnum):
    """How a stage orders its work.

    ONE_F_ONE_B: synchronous; every optimizer step is flushed, so weights and gradients are those of
        one process on the same microbatches.
    ASYNC: no flush within an epoch; a stage steps whenever `update_frequency` gradients have come.
        Stage i of S computes with weights up to S-1-i steps older than the ones its gradient
        updates.
    TWO_BW: no flush within an epoch, and the same weights on every stage: those of one step before
        the ones that the gradient updates, W(t+1) = W(t) - rate * gradient(W(t-1)), and for the
        first step of an epoch its own. Runs without a pause when a step has at least as many
        microbatches as the cluster has stages. On one stage nothing is delayed.
    ZB_H1: synchronous, with the numbers of `1f1b`. A stage sends the gradients of its inputs before
        it computes those of its weights, and does the latter where it would wait: stage i is up to
        i microbatches behind with them. The root has no gradients to send, and splits nothing. Its
        pauses are a third of those of `1f1b` where all passes take as long; every stage has as
        many microbatches in flight as the root.

    In all, a stage that uses a parameter of an earlier stage computes a microbatch with the
    version that the owner computed it with: all uses agree, and its age is the owner's.
    """

    ONE_F_ONE_B = "1f1b"
    ASYNC = "async"
    TWO_BW = "2bw"
    ZB_H1 = "zb-h1"

    @property
    def is_flushed(self) -> bool:
        """Whether no microbatch is in flight when weights change."""
        return self in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1)

    @property
    def is_uniform(self) -> bool:
        """Whether all stages compute a microbatch with weights of the same step."""
        return self is not Schedule.ASYNC

    def delays(self, num_stages: int) -> bool:
        """Whether every step uses gradients of the weights before the newest."""
        return self is Schedule.TWO_BW and num_stages > 1

    def splits_backward(self, stage: int) -> bool:
        """Whether a stage computes gradients of weights apart from those of its inputs."""
        return self is Schedule.ZB_H1 and stage > 0

    def is_short(self, num_stages: int, update_frequency: int) -> bool:
        """Whether the microbatches of two steps, which is all that `2bw` allows, are too few.

        Then not every stage can have one.
        """
        return self.delays(num_stages) and 2 * update_frequency < num_stages

    def depth(
        self,
        stage: int,
        num_stages: int,
        update_frequency: int,
        slack: int = 0,
        short_steps: Sequence[int] = (),
    ) -> int:
        """Microbatches that a stage starts before it awaits the gradients of the first.

        As many as there are stages from here on, and `slack` more, as far as weights allow: under a
        flush those of one step, under `2bw` one more, otherwise so many that no gradient gets
        older, counted in optimizer steps. Always one more than the next stage at least, so that
        slack that was planned for another run makes none slower.

        Where steps are short, as many as the plan says for them, see `StagePosition`.
        """
        behind = num_stages - stage - 1
        if self.is_short(num_stages, update_frequency) and update_frequency <= len(short_steps):
            return short_steps[update_frequency - 1]
        if not behind or not slack:
            return behind + 1
        if self.is_flushed:
            most = update_frequency - stage
        elif self.delays(num_stages):
            most = update_frequency + 1 - stage
        elif stage < (num_stages - 1) % update_frequency:
            steps = -(-behind // update_frequency)  # as many as for the root
            most = steps * update_frequency + 1 - stage
        else:
            most = 0  # this stage, or one before, has all that its age allows
        return max(behind + 1, min(behind + 1 + slack, most))

    def max_ahead(
        self,
        stage: int,
        num_stages: int,
        update_frequency: int,
        slack: int = 0,
        short_steps: Sequence[int] = (),
    ) -> int:
        """Microbatches between their forward pass and the gradients of their inputs at most."""
        depth = self.depth(stage, num_stages, update_frequency, slack, short_steps)
        if self.is_flushed:
            return min(depth, update_frequency)
        return min(depth, 2 * update_frequency) if self.delays(num_stages) else depth

    def max_behind(self, stage: int, update_frequency: int) -> int:
        """Microbatches whose inputs have gradients, and their weights not yet, at most."""
        return min(stage, update_frequency - 1) if self.splits_backward(stage) else 0

    def max_in_flight(
        self,
        stage: int,
        num_stages: int,
        update_frequency: int,
        slack: int = 0,
        short_steps: Sequence[int] = (),
    ) -> int:
        """Microbatches of a stage between their forward and the end of their backward pass."""
        ahead = self.max_ahead(stage, num_stages, update_frequency, slack, short_steps)
        behind = self.max_behind(stage, update_frequency)
        return min(ahead + behind, update_frequency) if behind else ahead

    def in_flight_at_step(
        self,
        stage: int,
        num_stages: int,
        update_frequency: int = 1,
        slack: int = 0,
        short_steps: Sequence[int] = (),
    ) -> int:
        """Microbatches in flight during an optimizer step at most."""
        if self.is_flushed:
            return 0
        left = self.depth(stage, num_stages, update_frequency, slack, short_steps) - 1
        return min(left, update_frequency) if self.delays(num_stages) else left

    def max_staleness(
        self, stage: int, num_stages: int, update_frequency: int = 1, slack: int = 0
    ) -> int:
        """Steps between the weights of a forward pass and those its gradient updates, at most."""
        if self.delays(num_stages):
            return 1
        left = self.in_flight_at_step(stage, num_stages, update_frequency, slack)
        return -(-left // update_frequency)

    def stashed_versions(
        self, stage: int, num_stages: int, update_frequency: int = 1, slack: int = 0
    ) -> int:
        """Weight versions a stage holds at most besides the current one."""
        return self.max_staleness(stage, num_stages, update_frequency, slack)

    def lasting_versions(
        self, stage: int, num_stages: int, update_frequency: int = 1, slack: int = 0
    ) -> int:
        """Those of them that outlast the first backward pass after a step.

        Only these meet a whole set of gradients: the step has used up those before, and the first
        backward pass makes the next while it frees activations.
        """
        if self.delays(num_stages):
            return 1
        left = self.in_flight_at_step(stage, num_stages, update_frequency, slack) - 1
        return -(-max(left, 0) // update_frequency)

    @classmethod
    def parse(cls, name: str) -> Schedule:
        """The schedule of that name; ConfigError naming the choices otherwise."""
        try:
            return cls(name)
        except ValueError:
            choices = ", ".join(repr(str(choice)) for choice in cls)
            raise ConfigError(f"schedule={name!r} is unknown; expected one of {choices}") from None


class ActionKind(StrEnum):
    """What a stage does with one microbatch, or with its optimizer.

    A backward pass is one, or two: first the gradients of inputs, later those of weights.
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    STEP = "S"


@dataclass(frozen=True, slots=True)
class Action:
    """One action; `number` is the microbatch's, or the step's, position in the epoch."""

    kind: ActionKind
    number: int

    def __str__(self) -> str:
        return f"{self.kind}{self.number}"


@dataclass(frozen=True, slots=True)
class StagePosition:
    """What an order of actions depends on.

    Attributes:
        stage: 0 is the root.
        num_stages: stages in the cluster.
        update_frequency: backward passes per optimizer step.
        slack: microbatches that the stage may start beyond those that fill equal stages without
            delay between them, so that slow links are filled as well. No stage may have less in
            flight than the next, or they could wait for each other.
        short_steps: those that it starts where steps have 1, 2, ... of them, too few for all
            stages (`Schedule.is_short`); empty for as many as there are.
    """

    schedule: Schedule
    stage: int
    num_stages: int
    update_frequency: int
    slack: int = 0
    short_steps: tuple[int, ...] = ()

    @property
    def _place(self) -> tuple[int, int, int, int]:
        return self.stage, self.num_stages, self.update_frequency, self.slack

    @property
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed apart from those of inputs."""
        return self.schedule.splits_backward(self.stage)

    @property
    def max_ahead(self) -> int:
        """Microbatches between their forward pass and the gradients of their inputs at most."""
        return self.schedule.max_ahead(*self._place, self.short_steps)

    @property
    def max_behind(self) -> int:
        """Microbatches whose inputs have gradients, and their weights not yet, at most."""
        return self.schedule.max_behind(self.stage, self.update_frequency)

    @property
    def max_in_flight(self) -> int:
        """Microbatches between their forward and the end of their backward pass at most."""
        return self.schedule.max_in_flight(*self._place, self.short_steps)

    @property
    def max_staleness(self) -> int:
        """Steps between the weights of a forward pass and those its gradient updates, at most."""
        return self.schedule.max_staleness(*self._place)

    def version_of(self, microbatch: int) -> int:
        """The steps of this epoch that the weights of a microbatch's forward pass have behind them.

        Its gradient is part of step `microbatch // update_frequency`; the difference of the two is
        its staleness.
        """
        frequency = self.update_frequency
        if self.schedule.delays(self.num_stages):
            return max(microbatch // frequency - 1, 0)
        if self.schedule.is_flushed:
            return microbatch // frequency
        return max(microbatch - self.max_ahead + 1, 0) // frequency


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a stage stands in an epoch.

    Attributes:
        forwards, steps: actions done so far.
        backwards: microbatches whose inputs have their gradients.
        completed: microbatches whose weights have theirs too.
        total: microbatches in the epoch, None while more may come.
    """

    forwards: int = 0
    backwards: int = 0
    completed: int = 0
    steps: int = 0
    total: int | None = None

    def after(self, action: Action) -> Progress:
        """The progress once `action` is done."""
        match action.kind:
            case ActionKind.FORWARD:
                return replace(self, forwards=self.forwards + 1)
            case ActionKind.BACKWARD:
                return replace(self, backwards=self.backwards + 1, completed=self.completed + 1)
            case ActionKind.BACKWARD_INPUT:
                return replace(self, backwards=self.backwards + 1)
            case ActionKind.BACKWARD_WEIGHT:
                return replace(self, completed=self.completed + 1)
            case ActionKind.STEP:
                return replace(self, steps=self.steps + 1)


def next_action(position: StagePosition, progress: Progress) -> Action | None:
    """The next action, or None when every microbatch of the epoch is done and applied.

    A FORWARD is returned while `total` is None even if no microbatch is left; the
    executor then learns that the epoch has ended, sets `total` and asks again.
    """
    frequency = position.update_frequency
    step_end = (progress.steps + 1) * frequency
    ended = progress.total is not None and progress.completed == progress.total
    unapplied = progress.completed - progress.steps * frequency
    if progress.completed >= step_end or (ended and unapplied > 0):
        return Action(ActionKind.STEP, progress.steps)
    if ended:
        return None
    last_forward = progress.total
    if (newest := _last_forward(position, step_end)) is not None:
        last_forward = newest if last_forward is None else min(newest, last_forward)
    ahead = progress.forwards - progress.backwards
    behind = progress.backwards - progress.completed
    if behind > position.max_behind:
        return Action(ActionKind.BACKWARD_WEIGHT, progress.completed)
    more_to_come = last_forward is None or progress.forwards < last_forward
    if more_to_come and ahead < position.max_ahead:
        return Action(ActionKind.FORWARD, progress.forwards)
    if ahead:
        splits = position.splits_backward
        kind = ActionKind.BACKWARD_INPUT if splits else ActionKind.BACKWARD
        return Action(kind, progress.backwards)
    return Action(ActionKind.BACKWARD_WEIGHT, progress.completed)


def _last_forward(position: StagePosition, step_end: int) -> int | None:
    """Microbatches whose weights exist before the step that ends with `step_end`, None for any."""
    if position.schedule.is_flushed:
        return step_end
    if position.schedule.delays(position.num_stages):
        return step_end + position.update_frequency
    return None


def list_actions(position: StagePosition, num_microbatches: int) -> Iterator[Action]:
    """Every action of an epoch of `num_microbatches`, in order: to print, draw and simulate."""
    progress = Progress(total=num_microbatches)
    while (action := next_action(position, progress)) is not None:
        yield action
        progress = progress.after(action)
