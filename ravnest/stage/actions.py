"""Which action a stage does next, from counts alone.

An order is fixed by the schedule, never by arrival, so a second run repeats the first bit for bit.
Knows no tensors and no network; the executor feeds `Progress` back after every action.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ravnest.stage.position import StagePosition


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
    if position.delays:
        return step_end + position.update_frequency
    return None


def list_actions(position: StagePosition, num_microbatches: int) -> Iterator[Action]:
    """Every action of an epoch of `num_microbatches`, in order: to print, draw and simulate."""
    progress = Progress(total=num_microbatches)
    while (action := next_action(position, progress)) is not None:
        yield action
        progress = progress.after(action)
