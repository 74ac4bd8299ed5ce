"""Pipeline schedules as data: which action a stage does next, from counts alone.

An order is fixed by the schedule, never by arrival, so a second run repeats the first bit for bit.
Knows no tensors and no network; the executor feeds `Progress` back after every action.

Sources: 1F1B is PipeDream-flush (Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN
Training"); `async` is PipeDream's steady state (Narayanan et al. 2019) without a flush, with the
weights of the forward pass stashed for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
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

    In both, a stage that uses a parameter of an earlier stage computes a microbatch with the
    version that the owner computed it with: all uses agree, and its age is the owner's.
    """

    ONE_F_ONE_B = "1f1b"
    ASYNC = "async"

    def max_in_flight(self, stage: int, num_stages: int, update_frequency: int) -> int:
        """Microbatches of a stage between their forward and their backward pass at most."""
        depth = num_stages - stage
        return depth if self is Schedule.ASYNC else min(depth, update_frequency)

    def in_flight_at_step(self, stage: int, num_stages: int) -> int:
        """Microbatches in flight during an optimizer step at most."""
        return num_stages - stage - 1 if self is Schedule.ASYNC else 0

    def stashed_versions(self, stage: int, num_stages: int, update_frequency: int = 1) -> int:
        """Weight versions a stage holds at most besides the current one."""
        return -(-self.in_flight_at_step(stage, num_stages) // update_frequency)

    def lasting_versions(self, stage: int, num_stages: int, update_frequency: int = 1) -> int:
        """Those of them that outlast the first backward pass after a step.

        Only these meet a whole set of gradients: the step has used up those before, and the first
        backward pass makes the next while it frees activations.
        """
        left = max(self.in_flight_at_step(stage, num_stages) - 1, 0)
        return -(-left // update_frequency)

    @classmethod
    def parse(cls, name: str) -> Schedule:
        """The schedule of that name; ConfigError naming the choices otherwise."""
        try:
            return cls(name)
        except ValueError:
            choices = ", ".join(repr(str(choice)) for choice in cls)
            raise ConfigError(f"schedule={name!r} is unknown; expected one of {choices}") from None


class ActionKind(StrEnum):
    """What a stage does with one microbatch, or with its optimizer."""

    FORWARD = "F"
    BACKWARD = "B"
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
    """

    schedule: Schedule
    stage: int
    num_stages: int
    update_frequency: int

    @property
    def max_in_flight(self) -> int:
        """Microbatches between their forward and their backward pass at most."""
        return self.schedule.max_in_flight(self.stage, self.num_stages, self.update_frequency)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a stage stands in an epoch.

    Attributes:
        forwards, backwards, steps: actions done so far.
        total: microbatches in the epoch, None while more may come.
    """

    forwards: int = 0
    backwards: int = 0
    steps: int = 0
    total: int | None = None

    def after(self, action: Action) -> Progress:
        """The progress once `action` is done."""
        match action.kind:
            case ActionKind.FORWARD:
                return replace(self, forwards=self.forwards + 1)
            case ActionKind.BACKWARD:
                return replace(self, backwards=self.backwards + 1)
            case ActionKind.STEP:
                return replace(self, steps=self.steps + 1)


def next_action(position: StagePosition, progress: Progress) -> Action | None:
    """The next action, or None when every microbatch of the epoch is done and applied.

    A FORWARD is returned while `total` is None even if no microbatch is left; the
    executor then learns that the epoch has ended, sets `total` and asks again.
    """
    frequency = position.update_frequency
    step_end = (progress.steps + 1) * frequency
    ended = progress.total is not None and progress.backwards == progress.total
    unapplied = progress.backwards - progress.steps * frequency
    if progress.backwards >= step_end or (ended and unapplied > 0):
        return Action(ActionKind.STEP, progress.steps)
    if ended:
        return None
    last_forward = progress.total
    if position.schedule is Schedule.ONE_F_ONE_B:
        last_forward = step_end if last_forward is None else min(step_end, last_forward)
    in_flight = progress.forwards - progress.backwards
    more_to_come = last_forward is None or progress.forwards < last_forward
    if more_to_come and in_flight < position.max_in_flight:
        return Action(ActionKind.FORWARD, progress.forwards)
    return Action(ActionKind.BACKWARD, progress.backwards)


def list_actions(position: StagePosition, num_microbatches: int) -> Iterator[Action]:
    """Every action of an epoch of `num_microbatches`, in order: to print, draw and simulate."""
    progress = Progress(total=num_microbatches)
    while (action := next_action(position, progress)) is not None:
        yield action
        progress = progress.after(action)
