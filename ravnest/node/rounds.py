"""When this node averages with the other clusters: counts steps and samples, keeps round ids."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ravnest.averaging.averager import Averager, RoundResult
from ravnest.metrics.events import EventLog, EventName
from ravnest.node.settings import RunSettings
from ravnest.stage.engine import StageEngine


class RoundKeeper:
    """Starts averaging rounds at the same points of the run on every node.

    Clusters may make different numbers of steps. A cluster that has none left keeps joining rounds,
    with a weight of zero, until every cluster says that it has finished; so all make the same
    number of rounds and end with the same bytes, without knowing each other's length.

    Args:
        turns: of this cluster over the mean of all, as a fraction; see `after_step`.
    """

    def __init__(
        self,
        averager: Averager,
        engine: StageEngine,
        settings: RunSettings,
        events: EventLog,
        turns: tuple[int, int] = (1, 1),
    ) -> None:
        self._turns = turns
        self._in_steps = 0  # rounds that a count of steps began
        self._averager = averager
        self._engine = engine
        self._settings = settings
        self._events = events
        self._num_rounds = 0
        self._num_steps = 0
        self._num_samples = 0

    def count_samples(self, num_samples: int) -> None:
        """Samples trained since the last round are this cluster's weight in the next."""
        self._num_samples += num_samples

    def after_step(self) -> None:
        """Averages every `reduce_factor` optimizer steps.

        Where clusters get batches by speed, that many is the mean over the clusters: a faster one
        makes more steps between rounds, so that none waits for the others.
        """
        self._num_steps += 1
        factor = self._settings.reduce_factor
        while factor is not None and self._num_steps >= self._next_round_at(factor):
            self._in_steps += 1
            self._run(finished=False)

    def _next_round_at(self, factor: int) -> int:
        mine, turns = self._turns
        # Rounded anew for every round, so that no remainder adds up. -(-a // b) rounds up.
        return -(-(self._in_steps + 1) * factor * mine // turns)

    def after_epoch(self) -> None:
        """Averages once per epoch when no `reduce_factor` is set."""
        if self._settings.reduce_factor is None:
            self._run(finished=False)

    def finish(self) -> None:
        """Joins rounds until every cluster has finished training."""
        while not self._run(finished=True).all_finished:
            pass

    def _run(self, *, finished: bool) -> RoundResult:
        companions: Mapping[str, Mapping[str, torch.Tensor]] = {}
        if self._settings.average_optim:
            companions = self._engine.optimizer_tensors()
        result = self._averager.average(
            self._engine.averaged_tensors(),
            round_id=self._num_rounds,
            num_samples=self._num_samples,
            finished=finished,
            companions=companions,
        )
        self._events.emit(
            EventName.AVERAGING_ROUND,
            round=self._num_rounds,
            num_samples=self._num_samples,
            total_samples=result.num_samples,
            applied=result.applied,
            duration_s=result.duration_s,
            sent_bytes=result.sent_bytes,
        )
        self._num_rounds += 1
        self._num_samples = 0
        return result
