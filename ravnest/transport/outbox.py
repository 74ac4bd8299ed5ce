"""What waits for the writer thread of a stream, and what need not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Outbox(Generic[T]):
    """A queue in order of `put`, that items may pass when the writer has nothing left to do.

    To wake a thread takes longer than to send a small message.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._num_left = 0
        self._lock = threading.Lock()

    def put(self, item: T, write: Callable[[T], bool] | None = None) -> None:
        """Queues an item, unless it may be written at once.

        Args:
            write: writes the item without waiting, true when it did; called in this thread, after
                everything before the item was written, before anything after it is.
        """
        with self._lock:
            if write is not None and not self._num_left and write(item):
                return
            self._num_left += 1
            self._queue.put(item)

    def get(self) -> T:
        """The next item, for the writer, who is then at work on it until it calls `done`."""
        return self._queue.get()

    def done(self) -> None:
        """The writer has written the item it got last."""
        with self._lock:
            self._num_left -= 1
