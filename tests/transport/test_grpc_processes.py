"""Real processes: killed, stopped, failing, forgetful; every fault happens after a sign of life."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from transport_support import QUICK

from ravnest.errors import PeerLostError
from ravnest.transport.interface import Message

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent


@pytest.fixture
def peer_process(grpc_nodes) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts node 1 of the test in a process."""
    started: list[subprocess.Popen[str]] = []

    def start(action: str) -> subprocess.Popen[str]:
        addresses = grpc_nodes.addresses
        command = [sys.executable, str(HERE / "link_peer.py"), action, "1", "0"]
        environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
        process = subprocess.Popen(
            [*command, addresses[1], addresses[0]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_killed_peer_is_lost_within_seconds(grpc_nodes, peer_process, in_thread):
    node = grpc_nodes.start(0)
    process = peer_process("wait")
    node.receive(1, "seen", purpose="a sign of life")
    waiting = in_thread(lambda: node.receive(1, "forward", purpose="activation 0.1"))
    process.kill()
    killed = time.monotonic()
    error = waiting.error()
    assert isinstance(error, PeerLostError)
    assert "node 1" in str(error)
    assert "activation 0.1" in str(error)
    assert time.monotonic() - killed < 5.0


def test_a_killed_peer_that_starts_again_is_refused(grpc_nodes, peer_process, in_thread):
    node = grpc_nodes.start(0)
    process = peer_process("wait")
    node.receive(1, "seen", purpose="a sign of life")
    waiting = in_thread(lambda: node.receive(1, "forward", purpose="it"))
    process.kill()
    assert isinstance(waiting.error(), PeerLostError)
    process.wait()
    output, _ = peer_process("report").communicate(timeout=20)
    assert output.startswith("ProtocolError")
    assert "node 1 was lost before" in output
    with pytest.raises(PeerLostError):
        node.send(1, "forward", Message(b""), purpose="it")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP on this platform")
def test_a_frozen_peer_is_lost_by_keepalive(grpc_nodes, peer_process, in_thread):
    node = grpc_nodes.start(0, QUICK.__class__(timeout_s=60.0, window=4))
    process = peer_process("wait")
    node.receive(1, "seen", purpose="a sign of life")
    waiting = in_thread(lambda: node.receive(1, "forward", purpose="it"))
    process.send_signal(signal.SIGSTOP)
    error = waiting.error(within_s=30.0)
    assert isinstance(error, PeerLostError)
    assert "node 1" in str(error)


def test_a_peer_ends_with_nothing_on_stderr(grpc_nodes, peer_process):
    node = grpc_nodes.start(0)
    process = peer_process("echo")
    node.receive(1, "seen", purpose="a sign of life")
    node.send(1, "forth", Message(b"h", [bytes(5 << 20)]), purpose="it")
    assert node.receive(1, "back", purpose="it").num_bytes == 5 << 20
    output, errors = process.communicate(timeout=20)
    assert (process.returncode, output, errors) == (0, "", "")


def test_a_process_that_forgets_to_close_still_ends(grpc_nodes, peer_process, in_thread):
    node = grpc_nodes.start(0)
    process = peer_process("forget")
    node.receive(1, "seen", purpose="a sign of life")
    waiting = in_thread(lambda: node.receive(1, "forward", purpose="it"))
    node.send(1, "forth", Message(b"go"), purpose="it")
    _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert isinstance(waiting.error(), PeerLostError)


def test_a_failure_reaches_another_process(grpc_nodes, peer_process):
    node = grpc_nodes.start(0)
    process = peer_process("report")
    node.receive(1, "seen", purpose="a sign of life")
    node.abort("ValueError: the loss is NaN")
    output, errors = process.communicate(timeout=20)
    assert output.startswith("PeerFailedError node 0 failed: ValueError: the loss is NaN")
    assert (process.returncode, errors) == (0, "")
