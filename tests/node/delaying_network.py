"""An in-memory network that holds messages back and reorders streams, by events alone.

Messages of one stream (sender, receiver, lane) stay in order, as every transport keeps them;
streams overtake each other at random. A message that is held back is let go when further ones are
sent, or when every node waits for one: nothing depends on time.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from typing import Any

from ravnest.transport.interface import Message, Transport, TransportSettings
from ravnest.transport.memory import MemoryNetwork, MemoryTransport

Stream = tuple[int, int, str]
"""Sender, receiver and lane."""


_MOST_HELD = 4  # of a stream: fewer than a sender's window


class DelayingNetwork(MemoryNetwork):
    """Delivers in an order that a seed draws.

    Attributes:
        num_overtaken: deliveries of a message while an older one of another stream was held.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._share = self._random.uniform(0.3, 0.95)
        self._held: dict[Stream, deque[tuple[int, Any]]] = {}
        self._hold = threading.RLock()  # taken before the network's own
        self._awaited: dict[int, Stream] = {}
        self._num_present = 0
        self._num_sent = 0
        self.num_overtaken = 0

    def transport(self, node_id: int, settings: TransportSettings | None = None) -> Transport:
        """One that says what it waits for."""
        return _Transport(self, node_id, settings or TransportSettings())

    def join(self, newcomer: MemoryTransport) -> None:
        with self._hold:
            self._num_present += 1
            super().join(newcomer)

    def carry(self, receiver: int, item: Any) -> None:
        """Takes a message; delivers some of those that are held."""
        with self._hold:
            stream = (item.sender, receiver, item.lane)
            self._held.setdefault(stream, deque()).append((self._num_sent, item))
            self._num_sent += 1
            while len(self._held.get(stream, ())) > _MOST_HELD:
                self._deliver(stream)
            while self._held and self._random.random() > self._share:
                self._deliver(self._random.choice(sorted(self._held)))
            self._release()  # nodes may wait already while their threads still send

    def waits(self, receiver: int, sender: int, lane: str) -> None:
        """A node is about to wait."""
        with self._hold:
            self._awaited[receiver] = (sender, receiver, lane)
            self._release()

    def goes_on(self, receiver: int) -> None:
        """A node has what it waited for."""
        with self._hold:
            self._awaited.pop(receiver, None)

    def leave(self, node_id: int, failure: str | None) -> None:
        """What was sent before a node left arrives before the news of it."""
        with self._hold:
            while self._held:
                self._deliver(self._random.choice(sorted(self._held)))
            self._num_present -= 1
            self._awaited.pop(node_id, None)
            super().leave(node_id, failure)

    def _release(self) -> None:
        """When all nodes wait, something that is awaited is delivered."""
        if len(self._awaited) < self._num_present:
            return
        while self._held:
            stream = self._random.choice(sorted(self._held))
            self._deliver(stream)
            if stream in self._awaited.values():
                return

    def _deliver(self, stream: Stream) -> None:
        number, item = self._held[stream].popleft()
        if not self._held[stream]:
            del self._held[stream]
        self.num_overtaken += any(held[0][0] < number for held in self._held.values())
        super().carry(stream[1], item)


class _Transport(MemoryTransport):
    def __init__(self, network: DelayingNetwork, node_id: int, settings: TransportSettings) -> None:
        super().__init__(network, node_id, settings)
        self._delaying = network

    def receive(
        self, peer: int, lane: str, *, purpose: str, within_s: float | None = None
    ) -> Message:
        self._delaying.waits(self.node_id, peer, lane)
        try:
            return super().receive(peer, lane, purpose=purpose, within_s=within_s)
        finally:
            self._delaying.goes_on(self.node_id)
