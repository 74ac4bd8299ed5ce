"""What a stage does in a run, in order, with what each action waits for and sends.

The order of compute is `ravnest.stage.schedule`'s. Around it come, as in ravnest/node/: gradients
and values of parameters that several stages use, and averaging rounds. Knows no time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from ravnest.stage.actions import ActionKind, list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

FORWARD, BACKWARD, UPDATE, AVERAGING, VALUES, BACKWARD_INPUT, BACKWARD_WEIGHT = range(7)
"""Kinds of entries, plain integers because every event looks at one.

VALUES is no work: the moment before a forward pass at which an owner sends the values of its shared
parameters.
"""

ACTIVATIONS_LANE, GRADIENTS_LANE, FIRST_TIED_LANE = range(3)
"""Lanes of a stage, incoming and outgoing; from FIRST_TIED_LANE on one per stage of the cluster."""

_KINDS = {
    ActionKind.FORWARD: FORWARD,
    ActionKind.BACKWARD: BACKWARD,
    ActionKind.BACKWARD_INPUT: BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: BACKWARD_WEIGHT,
    ActionKind.STEP: UPDATE,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One action.

    Attributes:
        number: of the microbatch, step or round.
        awaits: lanes and the position of the message in each that must have arrived.
        sends: outgoing lanes that get a message when it is done.
    """

    kind: int
    number: int
    awaits: tuple[tuple[int, int], ...]
    sends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """All that the scripts of a cluster depend on.

    Attributes:
        num_steps: optimizer steps of the run.
        steps_per_round: between averaging rounds, None when nothing is averaged.
        ties: pairs of stages, owner and holder of a parameter that both use.
        slacks: per stage, see `StagePosition`; empty for none.
        short_steps: likewise.
    """

    schedule: Schedule
    num_stages: int
    update_frequency: int
    num_steps: int
    steps_per_round: int | None
    ties: frozenset[tuple[int, int]]
    slacks: tuple[int, ...] = ()
    short_steps: tuple[tuple[int, ...], ...] = ()

    def position(self, stage: int) -> StagePosition:
        """What the order of a stage's actions depends on."""
        slack = self.slacks[stage] if self.slacks else 0
        short = self.short_steps[stage] if self.short_steps else ()
        return StagePosition(
            self.schedule, stage, self.num_stages, self.update_frequency, slack, short
        )

    def ends_with_round(self, step: int) -> bool:
        """Whether a round follows a step; one more follows the last, unless it just was."""
        if self.steps_per_round is None:
            return False
        return (step + 1) % self.steps_per_round == 0 or step + 1 == self.num_steps


@dataclass(frozen=True, slots=True)
class Script:
    """The actions of a stage, and the weight version each forward pass uses, by microbatch."""

    entries: tuple[Entry, ...]
    versions: tuple[int, ...]
    update_frequency: int

    def staleness(self, num_steps: int) -> tuple[int, ...]:
        """Microbatches that the first steps applied, by steps since their forward's weights."""
        return _staleness(self.versions, self.update_frequency, num_steps)


@lru_cache(maxsize=256)
def _staleness(versions: tuple[int, ...], frequency: int, num_steps: int) -> tuple[int, ...]:
    applied = versions[: num_steps * frequency]
    counts = Counter(i // frequency - version for i, version in enumerate(applied))
    return tuple(counts[age] for age in range(max(counts, default=-1) + 1))


@lru_cache(maxsize=256)
def scripts_of(shape: ClusterShape) -> tuple[Script, ...]:
    """The scripts of all stages of a cluster."""
    values = {owner: _value_numbers(shape, owner) for owner, _ in shape.ties}
    return tuple(_script(shape, stage, values) for stage in range(shape.num_stages))


def _actions(shape: ClusterShape, stage: int) -> list[tuple[int, int]]:
    """Kinds and numbers in order, rounds included."""
    position = shape.position(stage)
    order: list[tuple[int, int]] = []
    num_rounds = 0
    for action in list_actions(position, shape.num_steps * shape.update_frequency):
        order.append((_KINDS[action.kind], action.number))
        if action.kind is ActionKind.STEP and shape.ends_with_round(action.number):
            order.append((AVERAGING, num_rounds))
            num_rounds += 1
    return order


def _value_numbers(shape: ClusterShape, owner: int) -> list[int]:
    """By microbatch, the number (from 1) of the values that the owner computes it with.

    Rounds come right after steps, so averaged values need no number of their own.
    """
    position = shape.position(owner)
    versions = map(position.version_of, range(shape.num_steps * shape.update_frequency))
    numbers = {version: number for number, version in enumerate(dict.fromkeys(versions), 1)}
    return [
        numbers[position.version_of(i)] for i in range(shape.num_steps * shape.update_frequency)
    ]


def _script(shape: ClusterShape, stage: int, values: dict[int, list[int]]) -> Script:
    owners = sorted(owner for owner, holder in shape.ties if holder == stage)
    holders = sorted(holder for owner, holder in shape.ties if owner == stage)
    is_root, is_leaf = stage == 0, stage == shape.num_stages - 1
    to_holders = tuple(FIRST_TIED_LANE + holder for holder in holders)
    to_owners = tuple(FIRST_TIED_LANE + owner for owner in owners)
    entries: list[Entry] = []
    versions: list[int] = []
    position = shape.position(stage)
    num_sent = 0
    for kind, number in _actions(shape, stage):
        awaits: list[tuple[int, int]] = []
        sends: tuple[int, ...] = ()
        if kind == FORWARD:
            if not is_root:
                awaits.append((ACTIVATIONS_LANE, number))
            awaits += [(FIRST_TIED_LANE + owner, values[owner][number] - 1) for owner in owners]
            if holders and values[stage][number] > num_sent:
                num_sent = values[stage][number]
                entries.append(Entry(VALUES, num_sent - 1, tuple(awaits), to_holders))
            sends = () if is_leaf else (ACTIVATIONS_LANE,)
            versions.append(position.version_of(number))
        elif kind in (BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT):
            if kind != BACKWARD_WEIGHT:
                if not is_leaf:
                    awaits.append((GRADIENTS_LANE, number))
                sends = () if is_root else (GRADIENTS_LANE,)
            if kind != BACKWARD_INPUT and (number + 1) % shape.update_frequency == 0:
                sends += to_owners
        elif kind == UPDATE:
            awaits += [(FIRST_TIED_LANE + holder, number) for holder in holders]
        entries.append(Entry(kind, number, tuple(awaits), sends))
    return Script(tuple(entries), tuple(versions), shape.update_frequency)
