"""Nodes on both transports, and a check that none leaves a thread behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from cutting_proxy import CuttingProxy
from proxied_pair import Pair
from transport_support import PLAN, QUICK, free_address

from ravnest.transport import bulk_listener
from ravnest.transport.bulk_listener import BulkListener
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import PeerAddress, Transport, TransportSettings
from ravnest.transport.memory import MemoryNetwork


@dataclass
class Nodes:
    """Makes the transports of one test; all of them are closed at its end."""

    kind: str
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    addresses: dict[int, str] = field(default_factory=lambda: {i: free_address() for i in range(2)})
    made: list[Transport] = field(default_factory=list)

    def expect(self, num_nodes: int) -> None:
        """Makes every transport expect that many nodes, not two; called before `make`."""
        self.addresses = {i: free_address() for i in range(num_nodes)}

    def make(self, node_id: int, settings: TransportSettings = QUICK) -> Transport:
        if self.kind == "memory":
            transport = self.network.transport(node_id, settings)
        else:
            peers = [PeerAddress(i, a) for i, a in self.addresses.items() if i != node_id]
            transport = GrpcTransport(node_id, self.addresses[node_id], peers, PLAN, settings)
        self.made.append(transport)
        return transport

    def start(self, node_id: int, settings: TransportSettings = QUICK) -> Transport:
        transport = self.make(node_id, settings)
        transport.start()
        return transport


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    for thread in left:
        # gRPC's own threads end a moment after the call they served.
        thread.join(5.0)
    assert [thread.name for thread in left if thread.is_alive()] == []


@pytest.fixture(params=["memory", "grpc"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    yield from _nodes(request.param)


@pytest.fixture
def grpc_nodes() -> Iterator[Nodes]:
    yield from _nodes("grpc")


def _nodes(kind: str) -> Iterator[Nodes]:
    nodes = Nodes(kind)
    yield nodes
    for transport in nodes.made:
        transport.abort("the test is over")


@dataclass
class Running:
    """A call in a thread of its own, and what came of it."""

    thread: threading.Thread
    errors: list[BaseException] = field(default_factory=list)
    results: list[object] = field(default_factory=list)

    def error(self, within_s: float = 10.0) -> BaseException:
        self.thread.join(within_s)
        assert not self.thread.is_alive(), f"still blocked after {within_s} s"
        assert self.errors, f"no error but {self.results}"
        return self.errors[0]

    def result(self, within_s: float = 10.0) -> object:
        self.thread.join(within_s)
        assert not self.thread.is_alive(), f"still blocked after {within_s} s"
        assert not self.errors, self.errors
        return self.results[0]


@pytest.fixture
def in_thread() -> Callable[[Callable[[], object]], Running]:
    """Runs a call in a thread and returns once the thread has begun."""

    def run(call: Callable[[], object]) -> Running:
        begun = threading.Event()

        def body() -> None:
            begun.set()
            try:
                running.results.append(call())
            except BaseException as error:
                running.errors.append(error)

        running = Running(threading.Thread(target=body))
        running.thread.start()
        begun.wait()
        return running

    return run


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
        each.end()
