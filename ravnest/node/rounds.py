"""When this node averages with the other clusters: counts steps and samples, keeps round ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ravnest.averaging.averager import Averager, RoundResult
from ravnest.metrics.events import EventLog, EventName
from ravnest.node.settings import RunSettings
from ravnest.stage.engine import StageEngine


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """After which steps rounds begin and land; the same counts in every run.

    Attributes:
        reduce_factor: steps between two averagings of a tensor, on the mean over the clusters.
        overlap_steps: steps between the beginning of a round and its landing.
        num_fragments: rounds between two averagings of a tensor.
        turns: of this cluster over the mean of all, as a fraction. Where clusters get batches by
            speed, a faster one makes more steps between rounds, so that none waits for the others.
    """

    reduce_factor: int | None
    overlap_steps: int = 0
    num_fragments: int = 1
    turns: tuple[int, int] = (1, 1)

    def is_due(self, num_steps: int, num_begun: int) -> bool:
        """Whether the next round begins, of which so many have, after so many steps."""
        if self.reduce_factor is None:
            return False
        mine, turns = self.turns
        # Rounded anew for every round, so that no remainder adds up. -(-a // b) rounds up.
        due_at = -(-(num_begun + 1) * self.reduce_factor * mine // (turns * self.num_fragments))
        return num_steps >= due_at


class RoundKeeper:
    """Starts averaging rounds at the same points of the run on every node.

    Clusters may make different numbers of steps. A cluster that has none left keeps joining rounds,
    with a weight of zero, until every cluster says that it has finished; so all make the same
    number of rounds and end with the same bytes, without knowing each other's length.

    With an overlap, training goes on while a round is under way, and its correction is applied
    after a fixed count of steps, so that runs repeat bit by bit; before the next round at the
    latest, which a slow cluster may come to sooner.
    """

    def __init__(
        self,
        averager: Averager,
        engine: StageEngine,
        settings: RunSettings,
        events: EventLog,
        times: RoundTimes,
    ) -> None:
        self._averager = averager
        self._engine = engine
        self._settings = settings
        self._events = events
        self._times = times
        self._num_in_steps = 0  # rounds that a count of steps began
        self._num_rounds = 0
        self._num_steps = 0
        self._num_samples = 0
        self._taken = [0] * times.num_fragments  # samples that a fragment has been averaged with
        self._lands_at: int | None = None  # steps, of the round that is under way
        self._sent = 0  # samples that the round was begun with
        self._taken_then = 0  # of all samples, those trained on until then

    def count_samples(self, num_samples: int) -> None:
        """Samples trained since the last round are this cluster's weight in the next."""
        self._num_samples += num_samples

    def after_step(self) -> None:
        """Begins and lands the rounds that are due after this many optimizer steps."""
        self._num_steps += 1
        if self._lands_at is not None and self._num_steps >= self._lands_at:
            self._land()
        while self._times.is_due(self._num_steps, self._num_in_steps):
            self._num_in_steps += 1
            self._land()
            if self._times.overlap_steps:
                self._begin()
            else:
                self._run(finished=False)

    def after_epoch(self) -> None:
        """Averages once per epoch when no `reduce_factor` is set."""
        if self._settings.reduce_factor is None:
            self._run(finished=False)

    def finish(self) -> None:
        """Joins rounds until every cluster has finished and every fragment been averaged since."""
        self._land()
        num_left = self._times.num_fragments
        while num_left:
            is_over = self._run(finished=True).all_finished
            num_left = num_left - 1 if is_over else self._times.num_fragments

    def _run(self, *, finished: bool) -> RoundResult:
        result = self._averager.average(
            self._tensors(),
            round_id=self._num_rounds,
            num_samples=self._count_new(),
            finished=finished,
            companions=self._companions(),
        )
        self._complete(result)
        return result

    def _begin(self) -> None:
        self._averager.begin(
            self._tensors(),
            round_id=self._num_rounds,
            num_samples=self._count_new(),
            companions=self._companions(),
        )
        self._lands_at = self._num_steps + self._times.overlap_steps

    def _land(self) -> None:
        if self._lands_at is not None:
            self._lands_at = None
            self._complete(self._averager.land(self._tensors(), self._companions()))

    def _tensors(self) -> dict[str, torch.Tensor]:
        # `.data`: a microbatch in flight has noted how often its BatchNorm statistics were written
        # to, which its backward pass does not read, and would take a round for an error.
        return {name: each.data for name, each in self._engine.averaged_tensors().items()}

    def _companions(self) -> Mapping[str, Mapping[str, torch.Tensor]]:
        return self._engine.optimizer_tensors() if self._settings.average_optim else {}

    def _count_new(self) -> int:
        """Samples since the last round about the same fragment."""
        self._taken_then = self._num_samples
        self._sent = self._num_samples - self._taken[self._fragment]
        return self._sent

    @property
    def _fragment(self) -> int:
        return self._num_rounds % self._times.num_fragments

    def _complete(self, result: RoundResult) -> None:
        self._taken[self._fragment] = self._taken_then
        self._events.emit(
            EventName.AVERAGING_ROUND,
            round=self._num_rounds,
            num_samples=self._sent,
            total_samples=result.num_samples,
            applied=result.applied,
            duration_s=result.duration_s,
            waited_s=result.waited_s,
            sent_bytes=result.sent_bytes,
        )
        self._num_rounds += 1
