"""What owners and holders of a parameter wait for, over every schedule: no lock-up, no queue."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from ravnest.stage.actions import Action, ActionKind, list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule


@dataclass
class _Stage:
    """How far a stage is.

    Attributes:
        versions: per forward pass that of its weights, which the values that were sent have.
    """

    position: StagePosition
    order: list[Action]
    done: int = 0
    versions: list[int] = field(default_factory=list)

    def count(self, kind: ActionKind) -> int:
        return sum(action.kind is kind for action in self.order[: self.done])

    def sent(self, kind: ActionKind) -> int:
        """Messages of the kind that an action like this waits for."""
        returns = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
        return sum(map(self.count, returns)) if kind in returns else self.count(kind)

    def do(self) -> None:
        if self.order[self.done].kind is ActionKind.FORWARD:
            self.versions.append(self.position.version_of(len(self.versions)))
        self.done += 1


@given(
    st.sampled_from(Schedule),
    st.integers(2, 7),
    st.integers(1, 5),
    st.integers(0, 20),
    st.data(),
)
def test_sharing_never_locks_up_and_never_fills_a_window(
    schedule: Schedule, num_stages: int, frequency: int, total: int, data: st.DataObject
) -> None:
    """Stages run in any order that their waits allow; the drawn one stands for all."""
    index = st.integers(0, num_stages - 1)
    pairs = data.draw(st.sets(st.tuples(index, index).filter(lambda pair: pair[0] < pair[1])))
    more = data.draw(st.lists(st.integers(0, 3), min_size=num_stages - 1, max_size=num_stages - 1))
    slacks = list(itertools.accumulate(more, initial=0))[::-1]
    stages = [
        _Stage(position, list(list_actions(position, total)))
        for position in (
            StagePosition(schedule, i, num_stages, frequency, slack)
            for i, slack in enumerate(slacks)
        )
    ]

    def can_go_on(index: int) -> bool:
        """Whether what the next action receives has been sent."""
        stage = stages[index]
        if stage.done == len(stage.order):
            return False
        action = stage.order[stage.done]
        senders = {
            # Values for a forward pass were sent before the frame of that pass.
            ActionKind.FORWARD: [index - 1] if index > 0 else [],
            ActionKind.BACKWARD: [index + 1] if index + 1 < num_stages else [],
            ActionKind.BACKWARD_INPUT: [index + 1] if index + 1 < num_stages else [],
            ActionKind.BACKWARD_WEIGHT: [],
            ActionKind.STEP: [holder for owner, holder in pairs if owner == index],
        }
        return all(stages[i].sent(action.kind) > action.number for i in senders[action.kind])

    while possible := [i for i in range(num_stages) if can_go_on(i)]:
        stages[data.draw(st.sampled_from(possible))].do()
        for owner, holder in ((stages[o], stages[h]) for o, h in pairs):
            gradients = holder.count(ActionKind.STEP) - owner.count(ActionKind.STEP)
            assert 0 <= gradients <= num_stages
            if owner.versions:
                taken = owner.versions[len(holder.versions) - 1] if holder.versions else 0
                assert 0 <= owner.versions[-1] - taken <= num_stages
    assert all(stage.done == len(stage.order) for stage in stages)
