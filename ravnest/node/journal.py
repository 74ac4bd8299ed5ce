"""What a node records of a run: events, losses.txt, and the figures its owner watches."""

from __future__ import annotations

from pathlib import Path

from ravnest.metrics.events import EventLog, EventName
from ravnest.metrics.progress import ProgressLine
from ravnest.plan.identity import MicrobatchId


class RunJournal:
    """Writes as training goes on; a new run starts its files afresh.

    Args:
        losses_path: gets one line per optimizer step, None on nodes that compute no loss.
        progress: shown on the root, None elsewhere.
    """

    def __init__(
        self, events: EventLog, losses_path: Path | None, progress: ProgressLine | None
    ) -> None:
        self._events = events
        self._losses_path = losses_path
        self._progress = progress
        self.last_loss: float | None = None
        if losses_path is not None:
            losses_path.parent.mkdir(parents=True, exist_ok=True)
            losses_path.write_text("")

    def expect(self, *, epochs: int, batches_per_epoch: int | None) -> None:
        """How long training will take, as far as the trainer knows."""
        if self._progress is not None:
            self._progress.expect(epochs=epochs, batches_per_epoch=batches_per_epoch)

    def microbatch_trained(self, microbatch: MicrobatchId, loss: float, num_samples: int) -> None:
        """After the backward pass of a microbatch."""
        self.last_loss = loss
        if self._progress is not None:
            self._progress.update(
                epoch=microbatch.epoch, batch=microbatch.index + 1, loss=loss, samples=num_samples
            )

    def step_made(self, step: int, loss: float) -> None:
        """After an optimizer step; `loss` is the sum over its microbatches, as their gradients are."""
        self._events.write(EventName.STEP, step=step, loss=loss)
        if self._losses_path is not None:
            with self._losses_path.open("a", encoding="utf-8") as file:
                file.write(f"{loss!r}\n")

    def epoch_ended(self, epoch: int, num_microbatches: int) -> None:
        """After the last step of an epoch and its averaging."""
        self._events.write(EventName.EPOCH_ENDED, epoch=epoch, num_microbatches=num_microbatches)
        if self._progress is not None:
            self._progress.end_epoch()
