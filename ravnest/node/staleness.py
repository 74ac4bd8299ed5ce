"""Which weights a microbatch is computed with, and whether its gradient keeps to that."""

from __future__ import annotations

from ravnest.errors import TrainingError
from ravnest.plan.identity import MicrobatchId
from ravnest.stage.position import StagePosition
from ravnest.wire.frame import Frame


class StalenessContract:
    """One stage's versions of weights: chosen by the number of a microbatch, never by arrival."""

    def __init__(self, position: StagePosition) -> None:
        self._position = position
        self._first = 0  # that the epoch began with
        self._chosen: dict[MicrobatchId, int] = {}

    def begin_epoch(self, version: int) -> None:
        """Before its first microbatch; `version` is what the weights then are."""
        self._first = version

    def choose(self, microbatch: MicrobatchId) -> int:
        """The version for a forward pass, in optimizer steps of the run."""
        version = self._first + self._position.version_of(microbatch.index)
        self._chosen[microbatch] = version
        return version

    def check(self, microbatch: MicrobatchId, current: int, received: Frame | None) -> int:
        """Ends a microbatch: within the bound, and between stages as the schedule says.

        Args:
            current: version that its gradient is for.
            received: its gradient from the next stage, if any.

        Returns:
            The version it was computed with.

        Raises:
            TrainingError: the gradient is too old, or of other weights than the next stage's.
        """
        version = self._chosen.pop(microbatch)
        schedule, bound = self._position.schedule, self._position.max_staleness
        if not 0 <= current - version <= bound:
            raise TrainingError(
                f"the gradient of microbatch {microbatch} is {current - version} optimizer steps "
                f"old, with schedule {str(schedule)!r} at most {bound}"
            )
        if received is None:
            return version
        behind = received.weight_version
        # Without a flush a later stage has less in flight, so its weights are never older.
        if behind < version or (schedule.is_uniform and behind != version):
            raise TrainingError(
                f"the next stage computed microbatch {microbatch} with the weights of step "
                f"{behind}, this one with those of step {version}"
            )
        return version
