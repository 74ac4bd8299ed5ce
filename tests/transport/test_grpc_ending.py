"""What still arrives when a node fails, and what does not hold the news of it back."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from transport_support import QUICK

from ravnest.errors import PeerFailedError
from ravnest.transport import parting
from ravnest.transport.interface import Message


def test_messages_under_way_arrive_before_the_failure(grpc_nodes, in_thread, monkeypatch):
    monkeypatch.setattr(parting, "DRAIN_S", 60.0)
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    a.send(1, "seen", Message(b"alive"), purpose="it")
    b.receive(0, "seen", purpose="it")
    waiting = in_thread(lambda: b.receive(0, "nothing", purpose="it"))
    for i in range(QUICK.window):
        a.send(1, "forward", Message(b"%d" % i, (bytes(16 << 20),)), purpose="it")
    a.abort("boom")
    assert isinstance(waiting.error(), PeerFailedError)
    got = [b.receive(0, "forward", purpose="it") for _ in range(QUICK.window)]
    assert [message.header for message in got] == [b"0", b"1", b"2", b"3"]
    assert all(message.num_bytes == 16 << 20 for message in got)


def test_messages_without_room_do_not_hold_a_failure_back(grpc_nodes, monkeypatch):
    monkeypatch.setattr(parting, "DRAIN_S", 60.0)
    a, b = grpc_nodes.start(0), grpc_nodes.start(1, replace(QUICK, window=2))
    for i in range(QUICK.window):
        a.send(1, "forward", Message(b"%d" % i), purpose="it")
    a.send(1, "seen", Message(b"alive"), purpose="it")
    b.receive(0, "seen", purpose="it")
    started = time.monotonic()
    a.abort("boom")
    assert time.monotonic() - started < 30.0
    got = [b.receive(0, "forward", purpose="it").header for _ in range(2)]
    assert got == [b"0", b"1"]
    with pytest.raises(PeerFailedError, match="boom"):
        b.receive(0, "forward", purpose="it")


def test_a_node_may_fail_while_nobody_is_there(grpc_nodes):
    a = grpc_nodes.start(0)
    a.send(1, "forward", Message(b"0"), purpose="it")
    started = time.monotonic()
    a.abort("boom")
    assert time.monotonic() - started < 4.0
