"""One line that shows how training goes, for people. Knows nothing of training."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

_TERMINAL_PERIOD_S = 0.25
_PLAIN_PERIOD_S = 5.0
_RATE_WINDOW_S = 10.0
_MAX_MARKS = 256


class ProgressLine:
    """Shows `epoch 2/10 batch 12/17 | loss 0.5321 | 1,204 samples/s | 0:12 left`.

    On a terminal the line is overwritten in place, at most four times a second; elsewhere a
    line is written at most every five seconds. Either way the end of an epoch leaves a line that
    stays. Lengths that are unknown are left out, and with them the time left; the rate is that of
    the last ten seconds. Nothing happens between calls: no thread, no timer. A stream that can no
    longer be written to is given up in silence.

    Args:
        stream: where to; None shows nothing.
        num_epochs: of the whole run, None when unknown.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        stream: TextIO | None,
        *,
        num_epochs: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._num_epochs = num_epochs
        self._clock = clock
        self._is_terminal = stream is not None and stream.isatty()
        self._epoch = 0
        self._batch = 0
        self._num_batches: int | None = None
        self._loss: float | None = None
        self._marks: deque[tuple[float, int]] = deque(maxlen=_MAX_MARKS)
        self._shown_at_s = 0.0
        self._width = 0

    def begin_epoch(self, epoch: int, *, num_batches: int | None = None) -> None:
        """Starts an epoch.

        Args:
            epoch: counted from 0.
            num_batches: of this epoch, None when unknown.
        """
        self._epoch, self._batch, self._num_batches = epoch, 0, num_batches
        now_s = self._clock()
        self._marks.clear()  # what happened between epochs is not training
        self._marks.append((now_s, 0))
        # A terminal shows the first batch at once; a file gets no line for it.
        self._shown_at_s = now_s - _TERMINAL_PERIOD_S if self._is_terminal else now_s

    def batch_done(self, num_samples: int, *, loss: float | None = None) -> None:
        """Counts a batch and shows the line when it is time."""
        now_s = self._clock()
        self._batch += 1
        self._loss = self._loss if loss is None else loss
        self._marks.append((now_s, num_samples))
        while len(self._marks) > 2 and self._marks[0][0] < now_s - _RATE_WINDOW_S:
            self._marks.popleft()
        period_s = _TERMINAL_PERIOD_S if self._is_terminal else _PLAIN_PERIOD_S
        if now_s - self._shown_at_s >= period_s:
            self._shown_at_s = now_s
            self._show(stays=not self._is_terminal)

    def end_epoch(self) -> None:
        """Shows the line as it is now, to stay."""
        self._show(stays=True)

    def close(self) -> None:
        """Leaves the cursor on a line of its own; idempotent."""
        if self._width:
            self._width = 0
            self._write("\n")

    def __str__(self) -> str:
        """The line, without what overwrites and ends it."""
        parts = [
            f"epoch {_of(self._epoch + 1, self._num_epochs)}"
            f" batch {_of(self._batch, self._num_batches)}"
        ]
        if self._loss is not None:
            parts.append(f"loss {self._loss:.4f}")
        elapsed_s = self._marks[-1][0] - self._marks[0][0] if self._marks else 0.0
        if elapsed_s > 0:
            # The first mark only tells when the second batch began.
            num_samples = sum(samples for _, samples in self._marks) - self._marks[0][1]
            rate = num_samples / elapsed_s
            parts.append(f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.1f} samples/s")
            if (left := self._num_batches_left()) is not None:
                parts.append(f"{_clock_text(left * elapsed_s / (len(self._marks) - 1))} left")
        return " | ".join(parts)

    def _num_batches_left(self) -> int | None:
        if self._num_batches is None or self._num_epochs is None:
            return None
        epochs_left = self._num_epochs - self._epoch - 1
        return max(0, self._num_batches - self._batch + epochs_left * self._num_batches)

    def _show(self, *, stays: bool) -> None:
        text = str(self)
        if not self._is_terminal:
            self._write(text + "\n")
            return
        text = text[: max(1, shutil.get_terminal_size().columns - 1)]  # a wrapped line would stay
        self._write("\r" + text.ljust(self._width) + ("\n" if stays else ""))
        self._width = 0 if stays else len(text)

    def _write(self, text: str) -> None:
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # gone or closed: no reason to end a run
                self._stream = None


def _of(count: int, total: int | None) -> str:
    return str(count) if total is None else f"{count}/{total}"


def _clock_text(duration_s: float) -> str:
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
