"""Deadlines within a round follow earlier rounds, between bounds that one timeout sets."""

from __future__ import annotations

import pytest
import torch
from averaging_harness import Tapped, kind_of, membership, play, run_members, start_transports
from hypothesis import given
from hypothesis import strategies as st

from ravnest.averaging import Averager
from ravnest.averaging.deadlines import LEAST_SHARE, NUM_NEEDED, Deadlines
from ravnest.errors import PeerLostError
from ravnest.transport.interface import Message, Transport
from ravnest.wire.frame import FrameKind


@given(st.lists(st.floats(0, 1e6), max_size=80), st.floats(0.01, 1e5))
def test_deadlines_lie_between_a_share_of_the_timeout_and_the_timeout(
    waits: list[float], timeout_s: float
) -> None:
    deadlines = Deadlines(timeout_s)
    for number, waited_s in enumerate(waits):
        if number < NUM_NEEDED:
            assert deadlines.of("w") == timeout_s
        deadlines.note({"w": waited_s})
        assert LEAST_SHARE * timeout_s <= deadlines.of("w") <= timeout_s
        assert deadlines.of("never seen") == timeout_s


def test_a_deadline_is_the_median_and_ten_deviations() -> None:
    deadlines = Deadlines(1000.0)
    for waited_s in (190.0, 200.0, 210.0) * 5:
        deadlines.note({"w": waited_s})
    assert deadlines.of("w") == pytest.approx(200 + 10 * 1.4826 * 10)
    deadlines.note({"w": 999.0})  # one late message changes little
    assert deadlines.of("w") == pytest.approx(200 + 10 * 1.4826 * 10)


def test_later_rounds_replace_earlier_ones() -> None:
    deadlines = Deadlines(1000.0)
    for waited_s in [1.0] * 64 + [500.0] * 64:
        deadlines.note({"w": waited_s})
    assert deadlines.of("w") == 500.0


class Watched(Tapped):
    """Notes the deadlines that are asked for."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner, lambda _number, message: message)
        self.asked: list[float | None] = []

    def receive(
        self, peer: int, lane: str, *, purpose: str, within_s: float | None = None
    ) -> Message:
        self.asked.append(within_s)
        return super().receive(peer, lane, purpose=purpose, within_s=within_s)


def test_headers_wait_as_long_as_ever_and_the_rest_by_what_was_seen() -> None:
    def work(node: int, transport: Transport) -> list[float | None]:
        watched = Watched(transport)
        ring = membership(node, [0, 1], ["w"])
        averager = Averager(node, [ring], watched, timeout_s=20.0)
        for round_id in range(NUM_NEEDED + 1):
            watched.asked.clear()
            averager.average(
                {"w": torch.zeros(4)}, round_id=round_id, num_samples=1, finished=False
            )
        return watched.asked

    for asked in play([0, 1], work).values():
        header, *rest = asked
        assert header is None
        assert len(rest) == 3  # two chunks and a vote
        assert all(each is not None and 2.0 <= each < 20.0 for each in rest)


def test_a_member_that_falls_silent_within_a_round_is_given_up_early() -> None:
    """It takes far less than the 30 s of the transport."""
    transports = start_transports([0, 1])
    silenced: list[FrameKind] = []

    class Silent(Tapped):
        def send(self, peer: int, lane: str, message: Message, *, purpose: str) -> None:
            if "vote of averaging round 9 " in purpose:
                silenced.append(kind_of(message))
            else:
                super().send(peer, lane, message, purpose=purpose)

    transports[1] = Silent(transports[1], lambda _number, message: message)

    def work(node: int, transport: Transport) -> None:
        averager = Averager(node, [membership(node, [0, 1], ["w"])], transport, timeout_s=10.0)
        for round_id in range(10):
            averager.average(
                {"w": torch.zeros(4)}, round_id=round_id, num_samples=1, finished=False
            )

    outcomes = run_members(transports, work)
    assert silenced == [FrameKind.RING_VOTE]
    assert isinstance(outcomes[0], PeerLostError)
    assert "did not send vote of averaging round 9 in ring 0" in str(outcomes[0])
    for transport in transports.values():
        transport.close()
