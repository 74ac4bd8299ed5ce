"""What a node records of a run: events, losses.txt, and the progress its owner watches."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from ravnest.metrics.events import EventLog, EventName
from ravnest.metrics.progress import ProgressLine


class RunJournal:
    """Writes as training goes on; a new run starts its files afresh.

    Args:
        losses_path: gets one line per optimizer step, None on nodes that compute no loss.
        stream: where progress is shown, None on nodes that show none.
    """

    def __init__(
        self, events: EventLog, losses_path: Path | None, stream: TextIO | None
    ) -> None:
        self._events = events
        self._losses_path = losses_path
        self._stream = stream
        self._progress = ProgressLine(stream)
        self._batches_per_epoch: int | None = None
        if losses_path is not None:
            losses_path.parent.mkdir(parents=True, exist_ok=True)
            losses_path.write_text("")

    def expect(self, *, epochs: int, batches_per_epoch: int | None) -> None:
        """How long training will take, as far as the trainer knows."""
        self._progress = ProgressLine(self._stream, num_epochs=epochs)
        self._batches_per_epoch = batches_per_epoch

    def epoch_began(self, epoch: int) -> None:
        """Before the first microbatch of an epoch."""
        self._progress.begin_epoch(epoch, num_batches=self._batches_per_epoch)

    def microbatch_trained(self, loss: float, num_samples: int) -> None:
        """After the backward pass of a microbatch."""
        self._progress.batch_done(num_samples, loss=loss)

    def step_made(self, step: int, loss: float) -> None:
        """After an optimizer step; `loss` is the sum over its microbatches, as their gradients are."""
        self._events.emit(EventName.STEP, step=step, loss=loss)
        if self._losses_path is not None:
            with self._losses_path.open("a", encoding="utf-8") as file:
                file.write(f"{loss!r}\n")

    def epoch_ended(self, epoch: int, num_microbatches: int) -> None:
        """After the last step of an epoch and its averaging."""
        self._events.emit(EventName.EPOCH_ENDED, epoch=epoch, num_microbatches=num_microbatches)
        self._progress.end_epoch()

    def close(self) -> None:
        """Leaves the cursor on a line of its own."""
        self._progress.close()
