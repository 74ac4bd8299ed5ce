"""When a link that broke is waited for, and when its peer is lost."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest
from proxied_pair import PATIENT
from transport_support import QUICK

from ravnest.errors import PeerFailedError, PeerLostError, ProtocolError
from ravnest.transport import grpc_channel, grpc_server
from ravnest.transport.interface import Message
from ravnest.transport.peer_state import PeerState


def number(value: int) -> Message:
    return Message(b"%d" % value, (bytes(100_000),))


def meet(a, b) -> None:
    """Returns once both links are up and a message has gone each way."""
    for sender, receiver, peer in ((a, b, 1), (b, a, 0)):
        sender.send(peer, "meet", Message(b"hello"), purpose="it")
        receiver.receive(1 - peer, "meet", purpose="it")


def test_a_break_and_the_return_are_told(pair, caplog):
    each = pair()
    a, b = each.start()
    meet(a, b)
    with caplog.at_level(logging.WARNING):
        assert each.proxy.cut_all() > 0
        a.send(1, "forward", number(1), purpose="it")
        assert b.receive(0, "forward", purpose="it").header == b"1"
        a.close()
        b.close()
    assert "node 0: the link to node 1 broke: " in caplog.text
    assert "will be sent again if it is back within 30 s" in caplog.text
    assert "node 0: the link to node 1 is back after 0." in caplog.text


def test_connections_that_fall_silent_are_noticed_and_made_again(pair, monkeypatch):
    """As when an address translation forgets them: nobody is told that nothing goes through."""
    quick = {"grpc.keepalive_time_ms": 300, "grpc.keepalive_timeout_ms": 300}
    quick["grpc.http2.ping_timeout_ms"] = 300
    for module, name in ((grpc_channel, "CHANNEL_OPTIONS"), (grpc_server, "SERVER_OPTIONS")):
        options = dict(getattr(module, name)) | quick
        monkeypatch.setattr(module, name, tuple(options.items()))
    each = pair()
    a, b = each.start()
    meet(a, b)
    each.proxy.stall_all()
    for value in range(PATIENT.window):
        a.send(1, "forward", number(value), purpose="it")
    got = [b.receive(0, "forward", purpose="it").header for _ in range(PATIENT.window)]
    assert got == [b"0", b"1", b"2", b"3"]


def test_what_was_received_is_not_kept(pair):
    each = pair()
    a, b = each.start()
    for value in range(40):
        if value % 10 == 5:
            each.proxy.cut_all()
        a.send(1, "forward", Message(b"", (bytes(16 << 20),)), purpose="it")
        b.receive(0, "forward", purpose="it")
        assert a._outbounds[1].lane("forward", "it").num_undelivered <= 2


def test_closing_waits_for_a_link_that_comes_back(pair, in_thread):
    each = pair()
    a, b = each.start()
    meet(a, b)
    for value in range(PATIENT.window):
        a.send(1, "forward", number(value), purpose="it")
        each.proxy.cut_all()
    closing = in_thread(a.close)
    got = [b.receive(0, "forward", purpose="it").header for _ in range(PATIENT.window)]
    assert got == [b"0", b"1", b"2", b"3"]
    with pytest.raises(PeerLostError, match="has closed in good order"):
        b.receive(0, "forward", purpose="it")
    closing.result()


def test_news_of_a_failure_are_not_retried(pair):
    each = pair()
    a, b = each.start()
    meet(a, b)
    a.abort("boom")
    each.proxy.cut_all()
    with pytest.raises(PeerFailedError, match="boom"):
        b.receive(0, "forward", purpose="it")
    assert b._peers.state(0) is PeerState.FAILED


def test_without_reconnecting_a_break_is_the_end(pair):
    each = pair()
    a, b = each.start(replace(PATIENT, reconnect_s=0))
    meet(a, b)
    each.proxy.cut_all()
    for node, peer in ((a, 1), (b, 0)):
        with pytest.raises(PeerLostError, match=f"node {peer} at .* is lost: "):
            node.receive(peer, "forward", purpose="it")


def test_a_link_that_does_not_come_back_is_given_up_in_time(pair):
    each = pair()
    a, b = each.start(replace(PATIENT, reconnect_s=1.0))
    meet(a, b)
    each.proxy.budget_of_all = 0
    each.proxy.cut_all()
    started = time.monotonic()
    for node, peer in ((a, 1), (b, 0)):
        with pytest.raises(PeerLostError, match=r"it was not to be reached again \(1\.\d s later"):
            node.receive(peer, "forward", purpose="it")
    assert 0.9 < time.monotonic() - started < 5.0


def test_a_peer_whose_process_is_gone_is_lost_at_once(pair):
    """Its host says that nobody listens any more."""
    each = pair()
    a, b = each.start()
    meet(a, b)
    each.proxy.refuse()
    each.proxy.cut_all()
    started = time.monotonic()
    for node, peer in ((a, 1), (b, 0)):
        with pytest.raises(PeerLostError, match="nobody listens at its address any more"):
            node.receive(peer, "forward", purpose="it")
    assert time.monotonic() - started < 2.0


def test_a_peer_that_was_started_again_is_lost(pair, monkeypatch):
    """It knows nothing of what was sent to the process before it."""
    each = pair()
    a, b = each.start()
    meet(a, b)
    # As if killed: it says no farewell.
    monkeypatch.setattr(a._outbounds[1].control, "finish", lambda failure: None)
    each.proxy.budget_of_all = 0  # so that it is not found gone before the other one comes
    a.abort("killed")
    again = each.start_one(0)
    each.proxy.budget_of_all = None
    with pytest.raises(PeerLostError, match="started again and knows nothing of this run"):
        b.receive(0, "forward", purpose="it")
    with pytest.raises(ProtocolError, match=r"node 0 was lost before|a process that was here"):
        again.receive(1, "forward", purpose="it")


def test_a_shorter_deadline_does_not_count_while_the_link_is_broken(pair, in_thread):
    each = pair()
    a, b = each.start()
    meet(a, b)
    each.proxy.budget_of_all = 0
    each.proxy.cut_all()
    waiting = in_thread(lambda: b.receive(0, "forward", purpose="it", within_s=0.5).header)
    waiting.thread.join(1.0)
    assert waiting.thread.is_alive()
    each.proxy.budget_of_all = None
    a.send(1, "forward", Message(b"late"), purpose="it")
    assert waiting.result() == b"late"


def test_impossible_times_are_refused():
    with pytest.raises(Exception, match="reconnect_s is -1, expected seconds, or 0 for off"):
        replace(QUICK, reconnect_s=-1)
