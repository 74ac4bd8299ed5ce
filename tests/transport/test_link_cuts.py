"""Links that break and come back: nothing lost, nothing twice, in order, whatever was cut."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from cutting_proxy import CuttingProxy
from transport_support import PLAN, free_address, issue

from ravnest.transport import bulk_listener
from ravnest.transport.bulk_listener import BulkListener
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Message, PeerAddress, TransportSettings

PATIENT = TransportSettings(timeout_s=60.0, report_every_s=5.0, window=4, reconnect_s=30.0)


class Pair:
    """Two nodes that reach each other through a proxy alone."""

    def __init__(self, proxy: CuttingProxy) -> None:
        self.proxy = proxy
        self.addresses = [free_address(), free_address()]
        self.made: list[GrpcTransport] = []

    def start(
        self, settings: TransportSettings = PATIENT, **options: object
    ) -> list[GrpcTransport]:
        for node in range(2):
            self.start_one(node, settings, **options)
        return self.made

    def start_one(
        self, node: int, settings: TransportSettings = PATIENT, **options: object
    ) -> GrpcTransport:
        port = self.proxy.port_for(int(self.addresses[1 - node].rpartition(":")[2]))
        peer = PeerAddress(1 - node, f"127.0.0.1:{port}")
        made = GrpcTransport(node, self.addresses[node], [peer], PLAN, settings, **options)
        self.made.append(made)
        made.start()
        return made


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pair]]:
    pairs: list[Pair] = []
    offer = BulkListener.offer

    def through(self: BulkListener, serve: bulk_listener.Serve) -> object:
        made = offer(self, serve)
        return replace(made, port=pairs[-1].proxy.port_for(made.port))

    monkeypatch.setattr(BulkListener, "offer", through)

    def make(budgets: Iterable[int | None] = ()) -> Pair:
        pairs.append(Pair(CuttingProxy(budgets)))
        return pairs[-1]

    yield make
    for each in pairs:
        for transport in each.made:
            transport.abort("the test is over")
        each.proxy.close()


def content(seed: int, number: int, num_bytes: int) -> bytes:
    return random.Random(f"{seed}-{number}").randbytes(min(num_bytes, 997)) * (num_bytes // 997 + 1)


def exchange(nodes: list[GrpcTransport], sizes: list[int], lanes: int = 2) -> None:
    """Every node sends on every lane, and checks each message that comes."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                call()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

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

    threads = [
        guarded(lambda call=call, node=node, lane=f"lane-{lane}": call(node, lane))
        for call, node, lane in itertools.product((send, receive), range(2), range(lanes))
    ]
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


# Connections that are cut per run.
NUM_BROKEN = int(os.environ.get("RAVNEST_CUTS", "60"))
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
