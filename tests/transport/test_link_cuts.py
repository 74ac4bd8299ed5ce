"""Links that break and come back: nothing lost, nothing twice, in order, whatever was cut."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxied_pair import PATIENT
from transport_support import issue

from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Message


def content(seed: int, number: int, num_bytes: int) -> bytes:
    return random.Random(f"{seed}-{number}").randbytes(min(num_bytes, 997)) * (num_bytes // 997 + 1)


def in_background(call: Callable[[], None]) -> Callable[[], BaseException | None]:
    """Starts a call; what is returned waits for its end and gives the error there was."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    def ending() -> BaseException | None:
        thread.join(60.0)
        assert not thread.is_alive()
        return errors[0] if errors else None

    thread = threading.Thread(target=run)
    thread.start()
    return ending


def exchange(nodes: list[GrpcTransport], sizes: list[int], lanes: int = 2) -> None:
    """Every node sends on every lane, and checks each message that comes."""

    def send(node: int, lane: str) -> None:
        for number, size in enumerate(sizes):
            payload = content(node, number, size)[:size]
            # In pieces, of which each may be cut.
            pieces = (payload[: size // 3], payload[size // 3 :])
            message = Message(f"{lane} {number}".encode(), pieces)
            nodes[node].send(1 - node, lane, message, purpose=f"{number}")

    def receive(node: int, lane: str) -> None:
        for number, size in enumerate(sizes):
            message = nodes[node].receive(1 - node, lane, purpose=f"{number}")
            assert message.header == f"{lane} {number}".encode()
            assert bytes(message.payload[0]) == content(1 - node, number, size)[:size]

    endings = [
        in_background(partial(call, node, f"lane-{lane}"))
        for call, node, lane in itertools.product((send, receive), range(2), range(lanes))
    ]
    assert [ending() for ending in endings] == [None] * len(endings)


# Connections that are cut per run.
NUM_BROKEN = int(os.environ.get("RAVNEST_CUTS", "40"))
SIZES = [0, 1, 1000, 40_000, 300_000, 3 << 20, 5, 2 << 20, 17, 100_000]


def budgets(seed: int, most: int, count: int) -> Iterator[int | None]:
    """Connections in any state: within the handshake, a head, a frame; reset or ended."""
    source = random.Random(seed)
    for _ in range(count):
        yield int(2 ** source.uniform(8, most)) * source.choice((1, -1))


@pytest.mark.parametrize("way", ["bulk", "grpc", "tls"])
def test_cuts_anywhere_change_nothing(pair, way, tmp_path: Path):
    each = pair(budgets(1, 23, NUM_BROKEN))
    if way == "tls":
        authority = trustme.CA()
        for node in range(2):
            files = issue(tmp_path / str(node), authority, f"node-{node}")
            each.start_one(node, PATIENT, credentials=files)
    else:
        each.start(replace(PATIENT, bulk=way == "bulk"))
    exchange(each.made, SIZES * (1 + NUM_BROKEN // 20))
    assert each.proxy.num_cut >= NUM_BROKEN // 5
    for transport in each.made:
        transport.close()


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(st.integers(-3000, 3000), st.integers(-300_000, 300_000)),
        min_size=1,
        max_size=12,
    )
)
def test_a_cut_at_any_byte_changes_nothing(pair, first_budgets):
    each = pair(first_budgets)
    exchange(each.start(), [7, 70_000, 0], lanes=1)
    each.end()


def test_a_buffer_may_be_used_again_once_its_content_was_answered(pair):
    """The acknowledgement may be lost; the answer, on another connection, is enough."""
    each = pair(budgets(2, 18, 30))
    a, b = each.start()
    rounds = 100

    def answer() -> None:
        for number in range(rounds):
            message = b.receive(0, "there", purpose=f"{number}")
            assert bytes(message.payload[0]) == bytes([number]) * 10_000
            b.send(0, "back", Message(b"%d" % number), purpose=f"{number}")

    answering = in_background(answer)
    buffer = bytearray(10_000)
    for number in range(rounds):
        buffer[:] = bytes([number]) * len(buffer)
        a.send(1, "there", Message(b"", (buffer,)), purpose=f"{number}")
        assert a.receive(1, "back", purpose=f"{number}").header == b"%d" % number
    assert answering() is None
    assert each.proxy.num_cut >= 5
