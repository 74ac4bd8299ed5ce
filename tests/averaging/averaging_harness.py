"""Members of rings as threads of one process, each with its own in-memory transport."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import torch

from ravnest.errors import AveragingError
from ravnest.plan.parts import RingMembership
from ravnest.transport.interface import Message, Opener, Transport, TransportSettings
from ravnest.transport.memory import MemoryNetwork
from ravnest.wire.codec import decode
from ravnest.wire.frame import FrameKind

T = TypeVar("T")

JOIN_TIMEOUT_S = 60.0


def membership(
    node_id: int,
    members: Sequence[int],
    parameters: Sequence[str],
    *,
    ring_id: int = 0,
    buffers: Sequence[str] = (),
) -> RingMembership:
    return RingMembership(
        ring_id=ring_id,
        rank=list(members).index(node_id),
        size=len(members),
        members=tuple(members),
        parameters=tuple(parameters),
        buffers=tuple(buffers),
    )


def start_transports(nodes: Sequence[int], *, window: int = 16) -> dict[int, Transport]:
    network = MemoryNetwork()
    settings = TransportSettings(timeout_s=30.0, window=window)
    transports = {node: network.transport(node, settings) for node in nodes}
    for transport in transports.values():
        transport.start()
    return transports


def run_members(
    transports: Mapping[int, Transport], work: Callable[[int, Transport], T]
) -> dict[int, T | Exception]:
    """Runs `work` for every node at once; an outcome is what it returned or raised.

    As at the edge of a process, a node that fails in another way than by disagreement aborts.
    """
    outcomes: dict[int, T | Exception] = {}

    def member(node: int, transport: Transport) -> None:
        try:
            outcomes[node] = work(node, transport)
        except AveragingError as error:
            outcomes[node] = error
        except Exception as error:
            outcomes[node] = error
            transport.abort(f"node {node}: {error}")

    threads = [threading.Thread(target=member, args=item) for item in transports.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_TIMEOUT_S)
    assert not any(thread.is_alive() for thread in threads), f"only {sorted(outcomes)} came back"
    return outcomes


def play(
    nodes: Sequence[int], work: Callable[[int, Transport], T], *, window: int = 16
) -> dict[int, T]:
    """Runs `work` on fresh transports and expects every node to succeed."""
    transports = start_transports(nodes, window=window)
    outcomes = run_members(transports, work)
    for transport in transports.values():
        transport.close()
    results: dict[int, T] = {}
    for node, outcome in outcomes.items():
        if isinstance(outcome, Exception):
            raise outcome
        results[node] = outcome
    return results


def clones(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def assert_untouched(
    tensors: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor]
) -> None:
    for name, tensor in tensors.items():
        assert bytes_of(tensor) == bytes_of(before[name]), name


def kind_of(message: Message) -> FrameKind:
    payload = bytearray().join(message.payload)
    return decode(message.header, memoryview(payload)).kind


class Tapped(Transport):
    """A transport whose outgoing messages pass through a function first; it may raise.

    Attributes:
        kinds: of all messages that were sent, in order.
    """

    def __init__(self, inner: Transport, tap: Callable[[int, Message], Message]) -> None:
        self._inner = inner
        self._tap = tap
        self.kinds: list[FrameKind] = []

    def start(self) -> None:
        self._inner.start()

    def send(self, peer: int, lane: str, message: Message, *, purpose: str) -> None:
        message = self._tap(len(self.kinds), message)
        self.kinds.append(kind_of(message))
        self._inner.send(peer, lane, message, purpose=purpose)

    def receive(
        self, peer: int, lane: str, *, purpose: str, within_s: float | None = None
    ) -> Message:
        return self._inner.receive(peer, lane, purpose=purpose, within_s=within_s)

    def has_message(self, peer: int, lane: str) -> bool:
        return self._inner.has_message(peer, lane)

    def open_early(self, lanes: Collection[str], opener: Opener) -> None:
        self._inner.open_early(lanes, opener)

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)

    def close(self) -> None:
        self._inner.close()


def pass_on(_number: int, message: Message) -> Message:
    return message
