"""Keeps a connection over a long link from sending faster than the link, where Linux lets it.

TCP doubles what is on its way until something is lost. Over a long link that is late: by then a
queue's length too much is under way, all of which has to be sent again. Where the rate of a link is
known, a sender that never goes much faster loses nothing, and needs no second connection to be as
fast as the link (Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016, paces by what
it measures). The rate that a plan has may be too low. So it is raised as long as no queue builds
up, and taken back to what the link delivers when one does, but never below what the plan says.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

LONG_S = 0.005
"""Round trips from which a link is long; on shorter ones TCP finds the rate soon enough."""

ABOVE = 1.05
"""Of the planned rate: what is measured is a little less than a link can do."""

LEAST = 125_000.0
"""Bytes per second that are always allowed: 1 Mbps. A plan that says less is hardly right."""

_RAISED = 1.25
_DOUBLED_AFTER = 2  # raises without a queue: then the plan is far too low
_USED = 0.8  # of the pace
_PATIENCE_S, _PATIENCE_ROUND_TRIPS = 0.25, 8  # that a queue gets to build up
_QUEUE_S, _QUEUE_SHARE = 0.01, 0.5  # of a round trip; more waiting than both is a queue

_SLICE_BYTES = 128 << 10
_UNKNOWN = 0xFFFFFFFF  # microseconds, before anything was acknowledged
_MOST = 0x7FFFFFFF  # bytes per second that the option takes; -1 is no limit
_IS_LINUX = sys.platform.startswith("linux")
_MAX_PACING_RATE: int = getattr(socket, "SO_MAX_PACING_RATE", 47)
# struct tcp_info of Linux: smoothed and least round trip in microseconds, bytes per second of what
# was delivered last.
_INFO = struct.Struct("@68xI76xI8xQ")


class Reading(NamedTuple):
    """What the kernel says of a connection.

    Attributes:
        round_trip_s, least_round_trip_s: of late, and ever.
        delivered: bytes per second that were acknowledged of late.
    """

    round_trip_s: float
    least_round_trip_s: float
    delivered: float


class Pace:
    """The rate that a connection may send at.

    Args:
        planned: bytes per second of the link.
        now_s: a clock's time.

    Attributes:
        rate: bytes per second.
    """

    def __init__(self, planned: float, now_s: float) -> None:
        self.rate = self._least = max(ABOVE * planned, LEAST)
        self._since_s = now_s
        self._num_raised = 0  # since there was a queue

    def look(self, reading: Reading, now_s: float) -> bool:
        """Follows what the link does; whether the rate has changed."""
        least_s, before = reading.least_round_trip_s, self.rate
        queue_s = reading.round_trip_s - least_s
        if queue_s > max(_QUEUE_S, _QUEUE_SHARE * least_s):
            self.rate = max(self._least, min(self.rate, ABOVE * reading.delivered))
            self._since_s, self._num_raised = now_s, 0
        elif now_s - self._since_s >= max(_PATIENCE_S, _PATIENCE_ROUND_TRIPS * least_s):
            if reading.delivered >= _USED * self.rate:
                self.rate *= _RAISED if self._num_raised < _DOUBLED_AFTER else 2.0
                self._num_raised += 1
            self._since_s = now_s
        return self.rate != before


class Pacing:
    """Paces one connected socket, if its link is long.

    Args:
        planned: bytes per second of the link; None: nobody knows, and it is not paced.
    """

    def __init__(self, connected: socket.socket, planned: float | None) -> None:
        self._socket = connected
        self._pace: Pace | None = None
        if planned is None or not _IS_LINUX:
            return
        reading = self._reading()
        if reading is not None and reading.least_round_trip_s >= LONG_S:
            self._pace = Pace(planned, time.monotonic())
            self._set(self._pace.rate)

    def slices(self, piece: memoryview) -> Iterator[memoryview]:
        """A piece in parts to send one after the other; whole where nothing is paced.

        However much too low a plan's rate is, no part takes long, and the pace rises in between.
        """
        if self._pace is None:
            yield piece
            return
        for start in range(0, piece.nbytes, _SLICE_BYTES):
            self._look(self._pace)
            yield piece[start : start + _SLICE_BYTES]

    def _look(self, pace: Pace) -> None:
        reading = self._reading()
        if reading is not None and pace.look(reading, time.monotonic()):
            self._set(pace.rate)

    def _reading(self) -> Reading | None:
        """None where the kernel does not say that, or not yet."""
        raw = b""
        with contextlib.suppress(OSError):
            raw = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        if len(raw) < _INFO.size:
            return None
        microseconds, least, delivered = _INFO.unpack(raw)
        if least == _UNKNOWN:
            return None
        return Reading(1e-6 * microseconds, 1e-6 * least, float(delivered))

    def _set(self, rate: float) -> None:
        limit = int(rate) if rate <= _MOST else -1
        with contextlib.suppress(OSError):  # a sandbox may not let it; then it is not paced
            self._socket.setsockopt(socket.SOL_SOCKET, _MAX_PACING_RATE, limit)
