"""The order of a lane's messages, which may arrive over two connections. Knows neither."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ravnest.errors import ProtocolError


class LaneOrder:
    """Lets messages through by their position in the lane, from 0 on, whoever brings them.

    Args:
        lane: its name, for errors.
        window: messages that may be unconsumed; a position beyond it is never waited for.
        deliver: called with one message after the other, in order.
    """

    def __init__(self, lane: str, window: int, deliver: Callable[..., None]) -> None:
        self._lane = lane
        self._window = window
        self._deliver = deliver
        self._next = 0
        self._is_over = False
        self._change = threading.Condition()

    def let_through(self, position: int, *message: object) -> None:
        """Waits for all messages before this one, and delivers it.

        Raises:
            ProtocolError: there was one at this position, or there cannot be one yet.
            ConnectionError: the lane is over before those before it have come.
        """
        with self._change:
            self._await(position)
            self._deliver(*message)
            self._next += 1
            self._change.notify_all()

    def wait_for(self, position: int) -> None:
        """Waits for all messages before a position; raises as `let_through`."""
        with self._change:
            self._await(position)

    def end(self) -> None:
        """Nothing more comes: ends every wait, now and from now on."""
        with self._change:
            self._is_over = True
            self._change.notify_all()

    def _await(self, position: int) -> None:
        if not self._next <= position <= self._next + self._window:
            raise ProtocolError(
                f"position {position} came on lane {self._lane!r}, expected {self._next} to "
                f"{self._next + self._window}"
            )
        self._change.wait_for(lambda: self._is_over or self._next >= position)
        if self._next != position:
            if self._next > position:
                raise ProtocolError(f"position {position} came twice on lane {self._lane!r}")
            raise ConnectionError(f"lane {self._lane!r} is over before position {position}")
