"""An idle or waiting node uses no processor time."""

from __future__ import annotations

import threading
import time

from transport_support import QUICK

from ravnest.transport.interface import Message

PERIOD_S = 3.0
# gRPC's own threads look around ten times a second; 1 % of a core is the limit.
MAX_SHARE = 0.01


def share_of_a_core() -> float:
    """Processor time of this whole process over a while in which nothing happens."""
    before = time.process_time()
    threading.Event().wait(PERIOD_S)
    return (time.process_time() - before) / PERIOD_S


def test_waiting_for_an_absent_peer_takes_no_processor_time(grpc_nodes, in_thread):
    a = grpc_nodes.start(0, QUICK.__class__(timeout_s=60.0))
    waiting = in_thread(lambda: a.receive(1, "forward", purpose="it"))
    assert share_of_a_core() < MAX_SHARE
    assert waiting.thread.is_alive()
    a.close()
    waiting.error()


def test_waiting_for_a_silent_peer_takes_no_processor_time(grpc_nodes, in_thread):
    a, b = grpc_nodes.start(0), grpc_nodes.start(1)
    for node, peer in ((a, 1), (b, 0)):
        node.send(peer, "seen", Message(b"alive"), purpose="it")
    a.receive(1, "seen", purpose="it")
    b.receive(0, "seen", purpose="it")
    waiting = in_thread(lambda: a.receive(1, "forward", purpose="it"))
    # Two nodes live in this process.
    assert share_of_a_core() < 2 * MAX_SHARE
    assert waiting.thread.is_alive()
    b.close()
    waiting.error()
