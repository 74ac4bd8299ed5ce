"""The same rounds over gRPC: three nodes on loopback, linked rings, a failure in the middle."""

import socket
from contextlib import ExitStack

import pytest
import torch
from averaging_harness import Tapped, kind_of, membership, pass_on, run_members

from ravnest.averaging import Averager, RoundResult
from ravnest.errors import PeerFailedError
from ravnest.transport.grpc_transport import GrpcTransport
from ravnest.transport.interface import Message, PeerAddress, Transport, TransportSettings
from ravnest.wire.frame import FrameKind

NODES = (0, 1, 2)
RINGS = {0: ((0, 1, 2), "shared"), 1: ((0, 2), "outer")}


def free_addresses(count: int) -> list[str]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def start_grpc(window: int) -> dict[int, Transport]:
    addresses = free_addresses(len(NODES))
    peers = [PeerAddress(node, addresses[node]) for node in NODES]
    settings = TransportSettings(timeout_s=30.0, window=window)
    transports = {
        node: GrpcTransport(node, addresses[node], peers, "0" * 64, settings) for node in NODES
    }
    for transport in transports.values():
        transport.start()
    return dict(transports)


def tensors_of(node: int, num_elements: int) -> dict[str, torch.Tensor]:
    return {
        name: torch.full((num_elements,), float(node))
        for members, name in RINGS.values()
        if node in members
    }


def average(
    node: int, transport: Transport, live: dict[str, torch.Tensor], window: int
) -> list[RoundResult]:
    rings = [
        membership(node, members, [name], ring_id=ring_id)
        for ring_id, (members, name) in RINGS.items()
        if node in members
    ]
    averager = Averager(node, rings, transport, chunk_bytes=1 << 14, window=window)
    return [
        averager.average(live, round_id=round_id, num_samples=1, finished=round_id == 2)
        for round_id in range(3)
    ]


@pytest.mark.parametrize("window", [1, 2, 16])
def test_linked_rings_average_over_grpc(window: int) -> None:
    transports = start_grpc(window)
    live = {node: tensors_of(node, 100_003) for node in NODES}
    outcomes = run_members(transports, lambda n, t: average(n, t, live[n], window))
    for transport in transports.values():
        transport.close()
    for node in NODES:
        results = outcomes[node]
        assert not isinstance(results, Exception), results
        assert [result.all_finished for result in results] == [False, False, True]
        assert all((tensor == 1.0).all() for tensor in live[node].values())


def test_a_failure_in_the_middle_over_grpc_leaves_all_untouched() -> None:
    fired = []

    def fail(number: int, message: Message) -> Message:
        if kind_of(message) is FrameKind.RING_CHUNK and number == 20:
            fired.append(number)
            raise RuntimeError("disk on fire")
        return message

    transports = {
        node: Tapped(transport, fail if node == 1 else pass_on)
        for node, transport in start_grpc(window=4).items()
    }
    live = {node: tensors_of(node, 500_003) for node in NODES}
    outcomes = run_members(transports, lambda n, t: average(n, t, live[n], 4))
    for transport in transports.values():
        transport.close()
    assert fired == [20]
    assert str(outcomes[1]) == "disk on fire"
    for node in (0, 2):
        assert isinstance(outcomes[node], PeerFailedError), outcomes[node]
        assert "disk on fire" in str(outcomes[node])
    assert all((t == float(node)).all() for node in NODES for t in live[node].values())
