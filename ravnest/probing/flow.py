"""A transfer for so many seconds whatever the link: who sends, who counts, and the rate of it.

Knows messages, clocks and windows; knows nothing of gRPC. The sender has about two round
trips of traffic under way: enough to fill the link and to find its rate by doubling, little enough
to overflow no router's queue, to leave no slow link with minutes of queued bytes, and to send next
to nothing to a peer that acknowledges nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.errors import ProtocolError, TransportError
from ravnest.probing.messages import (
    MAX_DATA_BYTES,
    Arrival,
    Kind,
    data,
    end,
    kind_of,
    parse_ack,
)

_MIN_DATA_BYTES = 4 << 10
_FIRST_WINDOW_BYTES = 64 << 10
_MAX_WINDOW_BYTES = 64 << 20
_WINDOW_ROUND_TRIPS = 2.0
_MIN_WINDOW_S = 0.1
_RATE_OVER_S = 0.02
# One message takes this much of the time at most, once the rate is known.
_DATA_S = 0.01

_RAMP_SHARE = 0.5
_NUM_WINDOWS = 5
_MIN_ARRIVALS = 5

# Random, because links that compress would look faster than they are.
_NOISE = os.urandom(MAX_DATA_BYTES)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Payload bits per second that came in, once the transfer had got going.

    Attributes:
        bps: median over windows.
        low_bps, high_bps: slowest and fastest window.
    """

    bps: float
    low_bps: float
    high_bps: float


class Window:
    """How many bytes may be under way, from the acknowledgements so far."""

    def __init__(self, round_trip_s: float) -> None:
        self.num_bytes = _FIRST_WINDOW_BYTES
        self.data_bytes = _MIN_DATA_BYTES
        self._seconds = max(_MIN_WINDOW_S, _WINDOW_ROUND_TRIPS * round_trip_s)
        self._rate_over_s = max(_RATE_OVER_S, round_trip_s / 2)
        self._mark = Arrival(0, 0.0)

    def acknowledged(self, arrival: Arrival) -> None:
        """Takes in what the receiver has said."""
        elapsed_s = arrival.elapsed_s - self._mark.elapsed_s
        if elapsed_s < self._rate_over_s:
            return
        rate = (arrival.num_bytes - self._mark.num_bytes) / elapsed_s
        self._mark = arrival
        self.num_bytes = min(_MAX_WINDOW_BYTES, max(self.num_bytes, int(rate * self._seconds)))
        size = max(_MIN_DATA_BYTES, min(MAX_DATA_BYTES, int(rate * _DATA_S)))
        self.data_bytes = 1 << (size.bit_length() - 1)


def send_for(
    seconds: float,
    acks: Iterator[bytes],
    *,
    round_trip_s: float,
    max_bytes: int,
    arrived: Callable[[Arrival], None] = lambda arrival: None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bytes]:
    """Yields what to send.

    Args:
        seconds: how long to send; then END is sent and the rest of the acknowledgements awaited.
        acks: the messages that come back.
        round_trip_s: of the link, for the window.
        max_bytes: to send at most.
        arrived: told what arrived when, by the receiver's clock.

    Raises:
        ProtocolError: something else than acknowledgements of what was sent came back.
    """
    window = Window(round_trip_s)
    messages: dict[int, bytes] = {}
    last = Arrival(0, 0.0)
    num_sent, ends = 0, clock() + seconds
    while clock() < ends and num_sent < max_bytes:
        if num_sent - last.num_bytes >= window.num_bytes:
            last = _next_ack(acks, last, num_sent)
            window.acknowledged(last)
            arrived(last)
            continue
        size = window.data_bytes
        if size not in messages:
            messages[size] = data(_NOISE[:size])
        num_sent += size
        yield messages[size]
    yield end()
    while last.num_bytes < num_sent:
        last = _next_ack(acks, last, num_sent)
        arrived(last)


def _next_ack(acks: Iterator[bytes], before: Arrival, num_sent: int) -> Arrival:
    arrival = parse_ack(next(acks))
    if not before.num_bytes < arrival.num_bytes <= num_sent:
        raise ProtocolError(
            f"an acknowledgement of {arrival.num_bytes} bytes came after one of "
            f"{before.num_bytes}, with {num_sent} sent"
        )
    if arrival.elapsed_s < before.elapsed_s:
        raise ProtocolError("an acknowledgement is older than the one before")
    return arrival


def receive_until_end(
    incoming: Iterator[bytes], *, clock: Callable[[], float] = time.monotonic
) -> Iterator[Arrival]:
    """Counts DATA until END; yields what has arrived, each to be acknowledged.

    Raises:
        ProtocolError: something else came.
    """
    started, num_bytes = 0.0, 0
    while (kind := kind_of(raw := next(incoming))) is not Kind.END:
        if kind is not Kind.DATA or len(raw) < 2:
            raise ProtocolError(f"a {kind.name} of {len(raw)} bytes came; expected DATA or END")
        now = clock()
        started = started or now
        num_bytes += len(raw) - 1
        yield Arrival(num_bytes, now - started)


def goodput(arrivals: Sequence[Arrival]) -> Goodput:
    """The rate of a transfer: median over five windows of its second half.

    In the first half TCP finds its rate, and a shaper's bucket or a router's queue fills up.

    Raises:
        TransportError: too little came for a rate.
    """
    if len(arrivals) >= _MIN_ARRIVALS:
        times = np.array([arrival.elapsed_s for arrival in arrivals])
        totals = np.array([arrival.num_bytes for arrival in arrivals], dtype=np.float64)
        edges = np.linspace(times[-1] * _RAMP_SHARE, times[-1], _NUM_WINDOWS + 1)
        if edges[-1] > edges[0]:
            rates = 8 * np.diff(np.interp(edges, times, totals)) / np.diff(edges)
            return Goodput(float(np.median(rates)), float(rates.min()), float(rates.max()))
    num_bytes = arrivals[-1].num_bytes if arrivals else 0
    raise TransportError(
        f"only {num_bytes} bytes came in {len(arrivals)} messages, too little for a rate",
        hint="let it take longer, with --seconds",
    )
