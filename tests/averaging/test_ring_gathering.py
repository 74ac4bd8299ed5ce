"""Who says short things to whom, straight or around the ring, and who is blamed."""

from __future__ import annotations

import pytest
import torch
from averaging_harness import Tapped, membership, pass_on, play, run_members, start_transports

from ravnest.averaging import Averager, RoundResult
from ravnest.averaging.lane import message_of
from ravnest.errors import ProtocolError
from ravnest.transport.interface import Message, Transport
from ravnest.wire.frame import Frame, FrameKind


def average(node: int, size: int, transport: Transport, live: torch.Tensor) -> RoundResult:
    averager = Averager(node, [membership(node, range(size), ["w"])], transport)
    return averager.average({"w": live}, round_id=1, num_samples=1, finished=False)


class Addressed(Tapped):
    """Notes whom each message goes to."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner, pass_on)
        self.receivers: set[int] = set()

    def send(self, peer: int, lane: str, message: Message, *, purpose: str) -> None:
        self.receivers.add(peer)
        super().send(peer, lane, message, purpose=purpose)


@pytest.mark.parametrize("size", [2, 3, 8, 9, 12])
def test_a_member_talks_to_its_partners_only_and_all_end_alike(size: int) -> None:
    live = {node: torch.full((100,), float(node)) for node in range(size)}
    taps: dict[int, Addressed] = {}

    def work(node: int, transport: Transport) -> RoundResult:
        taps[node] = Addressed(transport)
        return average(node, size, taps[node], live[node])

    play(list(range(size)), work)
    for node in range(size):
        assert torch.equal(live[node], live[0])
        partners = membership(node, range(size), []).partners
        assert taps[node].receivers <= partners
        assert len(partners) == (size - 1 if size <= 8 else 2)
    assert live[0][0].item() == pytest.approx((size - 1) / 2)


@pytest.mark.parametrize("size", [2, 4, 9])
def test_the_member_that_gave_a_false_header_is_named(size: int) -> None:
    """Node 1 lies: straight it is known by all, around the ring each knows who passed it on."""

    def lie(number: int, message: Message) -> Message:
        if number:
            return message
        scalars = {"ring": 0, "rank": 1, "round": "one", "num_samples": 1}
        return message_of(Frame(FrameKind.RING_HEADER, scalars=scalars))

    nodes = list(range(size))
    transports = {
        node: Tapped(transport, lie if node == 1 else pass_on)
        for node, transport in start_transports(nodes).items()
    }
    heard: dict[int, str] = {}

    def work(node: int, transport: Transport) -> RoundResult:
        try:
            return average(node, size, transport, torch.zeros(10))
        except ProtocolError as error:
            heard[node] = str(error)
            raise

    run_members(transports, work)
    assert heard, "nobody noticed"
    for node, text in heard.items():
        giver = 1 if size <= 8 else (node - 1) % size
        assert f"node {giver} sent round 'one', expected int" in text
