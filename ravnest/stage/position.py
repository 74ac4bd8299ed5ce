"""What a stage's order of actions depends on, and how much is in flight in that order at most."""

from __future__ import annotations

from dataclasses import dataclass

from ravnest.stage.schedule import Schedule


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
    def splits_backward(self) -> bool:
        """Whether gradients of weights are computed apart from those of inputs."""
        return self.schedule.splits_backward(self.stage)

    @property
    def delays(self) -> bool:
        """Whether every step uses gradients of the weights before the newest."""
        return self.schedule.delays(self.num_stages)

    @property
    def depth(self) -> int:
        """Microbatches that the stage starts before it awaits the gradients of the first.

        As many as there are stages from here on, and `slack` more, as far as weights allow: under a
        flush those of one step, under `2bw` one more, otherwise so many that no gradient gets
        older, counted in optimizer steps. Always one more than the next stage at least, so that
        slack that was planned for another run makes none slower.

        Where steps are short, as many as the plan says for them.
        """
        frequency, behind = self.update_frequency, self.num_stages - self.stage - 1
        if self.schedule.is_short(self.num_stages, frequency) and (
            frequency <= len(self.short_steps)
        ):
            return self.short_steps[frequency - 1]
        if not behind or not self.slack:
            return behind + 1
        if self.schedule.is_flushed:
            most = frequency - self.stage
        elif self.delays:
            most = frequency + 1 - self.stage
        elif self.stage < (self.num_stages - 1) % frequency:
            steps = -(-behind // frequency)  # as many as for the root
            most = steps * frequency + 1 - self.stage
        else:
            most = 0  # this stage, or one before, has all that its age allows
        return max(behind + 1, min(behind + 1 + self.slack, most))

    @property
    def max_ahead(self) -> int:
        """Microbatches between their forward pass and the gradients of their inputs at most."""
        if self.schedule.is_flushed:
            return min(self.depth, self.update_frequency)
        return min(self.depth, 2 * self.update_frequency) if self.delays else self.depth

    @property
    def max_behind(self) -> int:
        """Microbatches whose inputs have gradients, and their weights not yet, at most."""
        return min(self.stage, self.update_frequency - 1) if self.splits_backward else 0

    @property
    def max_in_flight(self) -> int:
        """Microbatches between their forward and the end of their backward pass at most."""
        ahead, behind = self.max_ahead, self.max_behind
        return min(ahead + behind, self.update_frequency) if behind else ahead

    @property
    def in_flight_at_step(self) -> int:
        """Microbatches in flight during an optimizer step at most."""
        if self.schedule.is_flushed:
            return 0
        left = self.depth - 1
        return min(left, self.update_frequency) if self.delays else left

    @property
    def max_staleness(self) -> int:
        """Steps between the weights of a forward pass and those its gradient updates, at most.

        As many weight versions the stage holds at most besides the current one.
        """
        return 1 if self.delays else -(-self.in_flight_at_step // self.update_frequency)

    @property
    def lasting_versions(self) -> int:
        """Versions held that outlast the first backward pass after a step.

        Only these meet a whole set of gradients: the step has used up those before, and the first
        backward pass makes the next while it frees activations.
        """
        if self.delays:
            return 1
        return -(-max(self.in_flight_at_step - 1, 0) // self.update_frequency)

    def version_of(self, microbatch: int) -> int:
        """The steps of this epoch that the weights of a microbatch's forward pass have behind them.

        Its gradient is part of step `microbatch // update_frequency`; the difference of the two is
        its staleness.
        """
        frequency = self.update_frequency
        if self.delays:
            return max(microbatch // frequency - 1, 0)
        if self.schedule.is_flushed:
            return microbatch // frequency
        return max(microbatch - self.max_ahead + 1, 0) // frequency
