"""The sender's window and the rate, over links that are simulated to the microsecond."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ravnest.errors import ProtocolError, TransportError
from ravnest.probing import messages
from ravnest.probing.flow import Goodput, goodput, receive_until_end, send_for
from ravnest.probing.messages import Arrival, Kind


@dataclass
class SimulatedLink:
    """A queue of constant rate and a delay; its clock goes on only while the sender waits."""

    bps: float
    one_way_s: float
    now: float = 0.0
    free_at: float = 0.0
    received: int = 0
    sent: int = 0
    first_at: float | None = None
    most_queued_s: float = 0.0
    acks: list[tuple[float, int]] = field(default_factory=list)

    def send(self, raw: bytes) -> None:
        num_bytes = len(raw) - 1
        self.sent += num_bytes
        self.free_at = max(self.now, self.free_at) + 8 * num_bytes / self.bps
        self.most_queued_s = max(self.most_queued_s, self.free_at - self.now)
        heapq.heappush(self.acks, (self.free_at + 2 * self.one_way_s, self.sent))

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        at, self.received = heapq.heappop(self.acks)
        self.now = max(self.now, at)
        arrived = at - self.one_way_s
        self.first_at = arrived if self.first_at is None else self.first_at
        return messages.ack(Arrival(self.received, arrived - self.first_at))


def transfer(link: SimulatedLink, seconds: float, max_bytes: int = 1 << 60) -> list[Arrival]:
    """Sends over it; to hand a message over takes a microsecond."""
    arrivals: list[Arrival] = []
    for raw in send_for(
        seconds,
        link,
        round_trip_s=2 * link.one_way_s,
        max_bytes=max_bytes,
        arrived=arrivals.append,
        clock=lambda: link.now,
    ):
        link.now += 1e-6
        if messages.kind_of(raw) is Kind.DATA:
            link.send(raw)
    return arrivals


@settings(max_examples=40, deadline=None)
@given(bps=st.floats(5e5, 2e9), one_way_s=st.floats(0, 0.1))
def test_the_rate_is_the_links(bps: float, one_way_s: float) -> None:
    # More than this is under way on no link with the buffers that TCP has by default.
    assume(bps / 8 * 2 * one_way_s < 4 << 20)
    link = SimulatedLink(bps, one_way_s)
    arrivals = transfer(link, 4.0)
    assert goodput(arrivals).bps == pytest.approx(bps, rel=0.02)
    assert link.received == link.sent
    # What is still to come at the end comes within seconds, also on the slowest.
    assert link.now < 4.0 + 1.5 + 6 * one_way_s
    if bps > 4e6:
        assert link.most_queued_s < max(0.1, 4 * one_way_s) * 1.2 + 0.15


def test_no_more_than_the_cap_is_sent() -> None:
    link = SimulatedLink(1e9, 0.01)
    transfer(link, 4.0, max_bytes=1 << 20)
    assert (1 << 20) <= link.sent < (2 << 20)


def test_a_receiver_that_acknowledges_nothing_gets_one_window() -> None:
    sent: list[int] = []
    sender = send_for(4.0, iter(()), round_trip_s=0.1, max_bytes=1 << 60, clock=lambda: 0.0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        sent.extend(map(len, sender))
    assert 60_000 < sum(sent) < 70_000


@pytest.mark.parametrize(
    ("acks", "words"),
    [
        ([messages.ack(Arrival(1 << 40, 0.0))], "an acknowledgement of 1099511627776 bytes"),
        ([messages.ack(Arrival(4096, 0.2)), messages.ack(Arrival(4096, 0.3))], "after one of 4096"),
        ([messages.ack(Arrival(4096, 0.2)), messages.ack(Arrival(8192, 0.1))], "is older"),
        ([messages.ready()], "a READY came; expected ACK"),
        ([b""], "0 bytes came"),
        ([b"\x09\x00"], "a ACK of 2 bytes"),
    ],
)
def test_wrong_acknowledgements_are_refused(acks: list[bytes], words: str) -> None:
    sender = send_for(4.0, iter(acks), round_trip_s=0.1, max_bytes=1 << 60, clock=lambda: 0.0)
    with pytest.raises(ProtocolError, match=words):
        list(sender)


def test_what_is_no_data_ends_a_reception() -> None:
    for raw in (messages.ready(), bytes([Kind.DATA]), b"\xff"):
        with pytest.raises(ProtocolError):
            list(receive_until_end(iter([messages.data(b"abc"), raw])))


def test_the_ramp_and_single_stalls_do_not_count() -> None:
    """Slow start for 1.5 s, then 1 MB/s, with a stall of 0.3 s: known by construction."""
    arrivals, num_bytes = [], 0
    for step in range(401):
        elapsed_s = step * 0.01
        if 2.5 < elapsed_s < 2.8:
            continue
        num_bytes += 1_000 if elapsed_s < 1.5 else 10_000
        arrivals.append(Arrival(num_bytes, elapsed_s))
    rate = goodput(arrivals)
    assert rate.bps == pytest.approx(8e6, rel=0.03)
    assert rate.low_bps < 4e6


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_little_for_a_rate_is_said(count: int) -> None:
    arrivals = [Arrival(1000 * (i + 1), 0.1 * i) for i in range(count)]
    with pytest.raises(TransportError, match=f"only {1000 * count} bytes came in {count} messages"):
        goodput(arrivals)


def test_arrivals_all_at_once_have_no_rate() -> None:
    with pytest.raises(TransportError, match="too little"):
        goodput([Arrival(i + 1, 0.0) for i in range(10)])


def test_a_steady_transfer_has_one_rate() -> None:
    rate = goodput([Arrival(1000 * (i + 1), 0.1 * i) for i in range(41)])
    assert rate == Goodput(pytest.approx(8e4), pytest.approx(8e4), pytest.approx(8e4))
