"""What a node records of a run: events, losses, validations, and the progress its owner watches."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import TextIO

from ravnest.metrics.events import EventLog, EventName
from ravnest.metrics.progress import ProgressLine

logger = logging.getLogger(__name__)


class NumberFile:
    """One number a line. A run's first number replaces what an earlier run wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mode = "w"

    def append(self, number: float) -> None:
        """Adds a line; it is in the file when this returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open(self._mode, encoding="utf-8") as file:
            file.write(f"{number!r}\n")
        self._mode = "a"


class RunJournal:
    """Writes as training goes on.

    Args:
        losses: gets a line per optimizer step, None on nodes that compute no loss.
        validations: gets a line per validation, None on nodes that start none.
        stream: where progress is shown, None on nodes that show none.
    """

    def __init__(
        self,
        events: EventLog,
        losses: NumberFile | None,
        validations: NumberFile | None,
        stream: TextIO | None,
    ) -> None:
        self._events = events
        self._losses = losses
        self._validations = validations
        self._stream = stream
        self._progress = ProgressLine(stream)
        self._batches_per_epoch: int | None = None
        self._staleness: Counter[int] = Counter()

    def expect(self, *, epochs: int, batches_per_epoch: int | None) -> None:
        """How long training will take, as far as the trainer knows."""
        self._progress = ProgressLine(self._stream, num_epochs=epochs)
        self._batches_per_epoch = batches_per_epoch

    def epoch_began(self, epoch: int) -> None:
        """Before the first microbatch of an epoch."""
        self._progress.begin_epoch(epoch, num_batches=self._batches_per_epoch)

    def batch_trained(self, loss: float, num_samples: int) -> None:
        """After the backward passes of a batch."""
        self._progress.batch_done(num_samples, loss=loss)

    def gradient_made(self, staleness: int) -> None:
        """After a backward pass; `staleness` is in optimizer steps since its weights."""
        self._staleness[staleness] += 1

    def step_made(self, step: int, loss: float, gradient_norm: float | None = None) -> None:
        """After an optimizer step; `loss` is the sum over its microbatches, like the gradient.

        Args:
            gradient_norm: of the whole model, before it was clipped; None when it is not known.
        """
        known = {} if gradient_norm is None else {"gradient_norm": gradient_norm}
        self._events.emit(EventName.STEP, step=step, loss=loss, **known)
        if self._losses is not None:
            self._losses.append(loss)

    def evaluated(self, name: str, value: float, num_samples: int, *, validation: bool) -> None:
        """After an evaluation pass over the cluster."""
        self._events.emit(
            EventName.EVALUATION,
            metric=name,
            value=value,
            num_samples=num_samples,
            validation=validation,
        )
        kind = "validation" if validation else "evaluation"
        logger.info("%s: %s %.4f over %d samples", kind, name, value, num_samples)
        if validation and self._validations is not None:
            self._validations.append(value)

    def epoch_ended(self, epoch: int, num_microbatches: int) -> None:
        """After the last step of an epoch and its averaging."""
        self._events.emit(EventName.EPOCH_ENDED, epoch=epoch, num_microbatches=num_microbatches)
        counts = {f"stale_{age}": count for age, count in sorted(self._staleness.items())}
        self._events.emit(EventName.STALENESS, epoch=epoch, **counts)
        self._staleness.clear()
        self._progress.end_epoch()

    def close(self) -> None:
        """Leaves the cursor on a line of its own."""
        self._progress.close()
