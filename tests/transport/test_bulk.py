"""Large messages on a connection of their own: in order, bounded, and over gRPC where it fails."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from transport_support import PLAN, QUICK, free_address, positions_sent

from ravnest.errors import ProtocolError
from ravnest.transport import bulk_listener
from ravnest.transport.bulk_connection import (
    TICKET_BYTES,
    BulkConnection,
    BulkOffer,
)
from ravnest.transport.bulk_dialer import BulkDialer
from ravnest.transport.bulk_listener import BulkListener
from ravnest.transport.envelope import farewell, refusal_of
from ravnest.transport.inbox import Inbox
from ravnest.transport.intakes import Intakes
from ravnest.transport.interface import Message
from ravnest.transport.knocking import Door
from ravnest.transport.limits import MAX_HEADER_BYTES
from ravnest.transport.link import Link
from ravnest.transport.payload import BufferPool
from ravnest.transport.peer_state import PeerState
from ravnest.transport.peers import PeerTable
from ravnest.transport.reception import Reception
from ravnest.transport.stream_intake import StreamIntake

LARGE = bytes(range(256)) * 1025


@dataclass
class Intake:
    """The receiving end of one lane of node 0 at node 1, without gRPC."""

    inbox: Inbox
    peers: PeerTable
    lane: StreamIntake
    link: Link
    dialer: BulkDialer
    bulk: BulkListener
    is_over: bool = False

    def connect(self) -> BulkConnection:
        assert self.lane.offer is not None
        connection = self.dialer.connect(self.lane.offer)
        assert connection is not None
        return connection

    def next_header(self) -> bytes:
        return self.inbox.receive(0, "x", "it").header

    def bulk_is_over(self) -> None:
        for thread in list(self.bulk._threads):
            thread.join()

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.lane.end()
            self.bulk.stop()
            self.bulk.join()


@pytest.fixture
def intake() -> Iterator[Intake]:
    peers = PeerTable(1, QUICK, locate=str, probe=str)
    peers.open()
    address = free_address()
    bulk = BulkListener(address)
    inbox = Inbox(peers)
    narrow = replace(QUICK, max_payload_bytes=1 << 20)
    link = Link(1, 0, peers, 30.0, lambda: None)
    reception = Reception(
        node_id=1,
        incarnation=bytes(16),
        plan_sha256=PLAN,
        settings=narrow,
        peers=peers,
        links={0: link},
        intakes=Intakes(narrow, inbox, lambda peer, request: None),
        pool=BufferPool(),
        refused=lambda source, reason: None,
        arrived=lambda peer: None,
        answered=lambda peer, request: None,
        bulk=bulk,
    )
    lane = reception.intakes.lane(0, "x")
    lane.begin(1, lambda: None)
    link.greeted(1, is_control=True)
    stream = StreamIntake(reception, lane, 1, lambda: None)
    intake = Intake(inbox, peers, stream, link, BulkDialer(Door(address, "node-1")), bulk)
    yield intake
    intake.end()


def test_large_and_small_messages_of_a_lane_keep_their_order(nodes):
    a, b = nodes.start(0), nodes.start(1)
    sizes = [1, 2, len(LARGE), (32 << 10) + 1, 0, 1, 8 * len(LARGE), 3] * 4

    def send() -> None:
        for i, size in enumerate(sizes):
            a.send(1, "forward", Message(b"%d" % i, (bytes([i]) * size,)), purpose="it")
        a.close()

    sender = threading.Thread(target=send)
    sender.start()
    for i, size in enumerate(sizes):
        message = b.receive(0, "forward", purpose="it")
        assert message.header == b"%d" % i
        assert bytes(message.payload[0]) == bytes([i]) * size
    sender.join()


def test_what_was_sent_last_arrives_before_the_goodbye(grpc_nodes):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    closing = threading.Thread(target=a.close)
    for i in range(QUICK.window):
        a.send(1, "forward", Message(b"%d" % i, (LARGE * 16,)), purpose="it")
    closing.start()
    got = [b.receive(0, "forward", purpose="it") for _ in range(QUICK.window)]
    closing.join()
    assert [message.header for message in got] == [b"0", b"1", b"2", b"3"]
    assert all(bytes(message.payload[0]) == LARGE * 16 for message in got)


def _through(a, b) -> None:
    for i in range(3):
        a.send(1, "forward", Message(b"%d" % i, (LARGE,)), purpose="it")
        message = b.receive(0, "forward", purpose="it")
        assert message.header == b"%d" % i
        assert bytes(message.payload[0]) == LARGE


def test_large_messages_take_the_connection_that_is_offered(grpc_nodes, monkeypatch):
    sent = positions_sent(monkeypatch)
    _through(grpc_nodes.start(0), grpc_nodes.start(1))
    assert sent == [0, 1, 2]


def test_without_an_offer_large_messages_go_over_grpc(grpc_nodes):
    quiet = replace(QUICK, bulk=False)
    _through(grpc_nodes.start(0), grpc_nodes.start(1, quiet))


def test_a_port_that_cannot_be_reached_is_tried_once_and_told(grpc_nodes, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    offer = BulkListener.offer
    unused = int(free_address().rpartition(":")[2])
    monkeypatch.setattr(
        BulkListener,
        "offer",
        lambda self, serve: replace(offer(self, serve), port=unused),
    )
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    _through(a, b)
    a.send(1, "other", Message(b"first"), purpose="it")
    a.send(1, "other", Message(b"second", (LARGE,)), purpose="it")
    assert [b.receive(0, "other", purpose="it").header for _ in "12"] == [b"first", b"second"]
    told = [line for line in caplog.messages if "for messages" in line]
    assert len(told) == 1
    assert f"node-1 offers port {unused} for messages, which cannot be reached" in told[0]


def test_a_ticket_is_good_for_one_connection(intake):
    offer = intake.lane.offer
    first = intake.connect()
    assert BulkDialer(Door("127.0.0.1:1", "node-1")).connect(offer) is None
    first.send(0, Message(b"unharmed"))
    assert intake.next_header() == b"unharmed"
    first.close()


def test_a_stranger_gets_nothing_and_hinders_nobody(intake, monkeypatch):
    port = intake.lane.offer.port
    with socket.create_connection(("127.0.0.1", port), 5.0) as guess:
        guess.sendall(bytes(TICKET_BYTES))
        assert guess.recv(1) == b""
    silent = [socket.create_connection(("127.0.0.1", port), 5.0) for _ in range(3)]
    connection = intake.connect()
    connection.send(0, Message(b"through"))
    assert intake.next_header() == b"through"
    connection.close()
    for each in silent:
        each.close()


def test_no_more_strangers_are_kept_than_a_few(intake, monkeypatch):
    monkeypatch.setattr(bulk_listener, "MAX_STRANGERS", 2)
    port = intake.lane.offer.port
    kept = [socket.create_connection(("127.0.0.1", port), 5.0) for _ in range(2)]
    with socket.create_connection(("127.0.0.1", port), 5.0) as late:
        assert late.recv(1) == b""
    for each in kept:
        each.close()


@pytest.mark.parametrize(
    ("position", "header_bytes", "num_bytes", "reason"),
    [
        (0, 1, (1 << 20) + 1, "a payload of 1048577 bytes is announced"),
        (0, MAX_HEADER_BYTES + 1, 1, "a header has"),
        (1, 1, 1, "message 1 came on lane 'x', expected 0"),
        (1 << 63, 1, 1, "message 9223372036854775808 came"),
    ],
)
def test_a_message_that_cannot_be_is_refused(intake, position, header_bytes, num_bytes, reason):
    connection = intake.connect()
    head = head_of(position, header_bytes, num_bytes)
    connection._socket.sendall(head + b"hp")
    with pytest.raises(ProtocolError, match="node 0") as caught:
        intake.next_header()
    assert reason in str(caught.value)
    assert intake.lane.problem is not None
    assert connection._socket.recv(1) == b""  # cut
    connection.close()


def head_of(position: int, header_bytes: int, num_bytes: int, note_bytes: int = 0) -> bytes:
    sizes = (position, 8), (header_bytes, 4), (num_bytes, 8), (note_bytes, 2)
    return b"".join(value.to_bytes(width, "big") for value, width in sizes)


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        (b"no request", "10 bytes are no ToReceiver"),
        (farewell(None), "takes along an unexpected farewell"),
        (refusal_of("y", "because"), "takes along an unexpected refusal"),
    ],
)
def test_a_note_that_is_no_credit_is_refused(intake, note, reason):
    connection = intake.connect()
    connection._socket.sendall(head_of(0, 1, 1, len(note)) + note + b"hp")
    with pytest.raises(ProtocolError, match="node 0") as caught:
        intake.next_header()
    assert reason in str(caught.value)
    assert connection._socket.recv(1) == b""  # cut
    connection.close()


def test_a_position_twice_is_refused(intake):
    connection = intake.connect()
    connection.send(0, Message(b"once"))
    connection.send(0, Message(b"twice"))
    assert intake.next_header() == b"once"
    with pytest.raises(ProtocolError, match="message 0 came on lane 'x', expected 1"):
        intake.next_header()
    connection.close()


def test_a_refused_message_is_told_to_its_sender(grpc_nodes, in_thread):
    a = grpc_nodes.start(0)
    b = grpc_nodes.start(1, replace(QUICK, max_payload_bytes=len(LARGE)))
    a.send(1, "forward", Message(b"fits", (LARGE,)), purpose="it")
    assert b.receive(0, "forward", purpose="it").header == b"fits"
    a_waits = in_thread(lambda: a.receive(1, "back", purpose="it"))
    a.send(1, "forward", Message(b"not", (LARGE * 64,)), purpose="it")
    with pytest.raises(ProtocolError, match="is announced, at most"):
        b.receive(0, "forward", purpose="it")
    assert "is announced, at most" in str(a_waits.error())


def test_closing_does_not_wait_for_a_stranger_or_a_half_sent_message(intake, in_thread):
    stranger = socket.create_connection(("127.0.0.1", intake.lane.offer.port), 5.0)
    connection = intake.connect()
    connection._socket.sendall(head_of(0, 1, 100) + b"half")
    in_thread(intake.end).result(within_s=5.0)
    assert intake.peers.state(0) is PeerState.CONNECTED  # not taken for broken
    stranger.close()
    connection.close()


def test_ports_of_other_nodes_are_left_to_them():
    seen: list[int] = []

    class First:
        """The port that is found first is another node's."""

        def __contains__(self, port: object) -> bool:
            assert isinstance(port, int)
            seen.append(port)
            return port == seen[0]

    listener = BulkListener(free_address(), taken=First())
    assert listener.offer(BulkConnection.close).port == seen[1] != seen[0]
    listener.stop()
    listener.join()


def test_a_connection_that_ends_takes_its_stream_with_it(intake, in_thread):
    """The sender may have nothing more to send, and what it sent last may be what was lost."""
    connection = intake.connect()
    connection.send(0, Message(b"whole"))
    assert intake.next_header() == b"whole"
    connection.close()
    in_thread(intake.bulk_is_over).result()
    assert intake.peers.state(0) is PeerState.RECONNECTING


def test_an_offer_that_nobody_answers_is_given_up(in_thread):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        dialer = BulkDialer(Door("127.0.0.1:1", "node-1"))

        def turn_away() -> None:
            connection, _ = listener.accept()
            connection.close()

        answers = in_thread(turn_away)
        assert dialer.connect(BulkOffer(port, bytes(TICKET_BYTES))) is None
        answers.result()
