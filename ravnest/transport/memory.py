"""A transport between nodes of one process: what gRPC does, without bytes leaving the process."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from ravnest.errors import ProtocolError, TransportError
from ravnest.transport.inbox import Inbox
from ravnest.transport.interface import Message, Opener, Transport, TransportSettings
from ravnest.transport.limits import check_header, check_lane
from ravnest.transport.payload import joined
from ravnest.transport.peer_state import Lifecycle
from ravnest.transport.peers import PeerTable
from ravnest.transport.window import SendWindow


@dataclass(frozen=True, slots=True)
class _Early:
    """A message for a node that has not started yet."""

    sender: int
    lane: str
    message: Message
    give_credit: Callable[[], None]
    window: int


class MemoryNetwork:
    """Joins the in-memory transports of one test or one simulated run; thread-safe."""

    def __init__(self) -> None:
        # Taken before the condition of any transport, never after.
        self._lock = threading.RLock()
        self._present: dict[int, MemoryTransport] = {}
        self._gone: dict[int, str | None] = {}
        self._early: defaultdict[int, list[_Early]] = defaultdict(list)

    def transport(self, node_id: int, settings: TransportSettings | None = None) -> Transport:
        """A transport for one node of this network; every other node is its peer."""
        return MemoryTransport(self, node_id, settings or TransportSettings())

    def join(self, newcomer: MemoryTransport) -> None:
        """Connects a node to all that are present and delivers what was sent to it before.

        Raises:
            TransportError: the node is or was present.
        """
        with self._lock:
            if newcomer.node_id in self._present or newcomer.node_id in self._gone:
                raise TransportError(f"node {newcomer.node_id} has joined this network before")
            for transport in self._present.values():
                transport.peers.connected(newcomer.node_id)
                newcomer.peers.connected(transport.node_id)
            self._present[newcomer.node_id] = newcomer
            early = self._early.pop(newcomer.node_id, [])
            for item in early:
                self._hand_over(item, newcomer)
            for sender in {item.sender for item in early} & self._gone.keys():
                newcomer.hear_of_end(sender, self._gone[sender])

    def carry(self, receiver: int, item: _Early) -> None:
        """Delivers a message, or keeps it until the receiver starts."""
        with self._lock:
            if (transport := self._present.get(receiver)) is not None:
                self._hand_over(item, transport)
            elif receiver not in self._gone:
                self._early[receiver].append(item)

    def _hand_over(self, item: _Early, receiver: MemoryTransport) -> None:
        try:
            receiver.deliver(item)
        except ProtocolError as error:
            receiver.peers.broke_protocol(item.sender, error.message)
            if (sender := self._present.get(item.sender)) is not None:
                cause = f"it refuses lane {item.lane!r}: {error.message}"
                sender.peers.broke_protocol(receiver.node_id, cause)

    def leave(self, node_id: int, failure: str | None) -> None:
        """Takes a node out and tells all others why; None is a goodbye."""
        with self._lock:
            if self._present.pop(node_id, None) is None:
                return
            self._gone[node_id] = failure
            for transport in self._present.values():
                transport.hear_of_end(node_id, failure)


class MemoryTransport(Transport):
    """One node of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, node_id: int, settings: TransportSettings) -> None:
        self.node_id = node_id
        self.peers = PeerTable(
            node_id,
            settings,
            locate=lambda peer: f"memory:{peer}",
            probe=lambda peer: "not started",
        )
        self._network = network
        self._settings = settings
        self._inbox = Inbox(self.peers)
        self._lock = threading.Lock()
        self._windows: dict[tuple[int, str], SendWindow] = {}
        self._lanes_in: set[tuple[int, str]] = set()

    def start(self) -> None:
        self.peers.open()
        self._network.join(self)

    def send(self, peer: int, lane: str, message: Message, *, purpose: str) -> None:
        self._check_peer(peer, lane)
        check_header(message)
        window = self._window(peer, lane)
        window.take(purpose)
        copy = Message(bytes(message.header), (joined(message.payload),))
        give_credit = partial(window.give, 1)
        item = _Early(self.node_id, lane, copy, give_credit, self._settings.window)
        self._network.carry(peer, item)

    def receive(
        self, peer: int, lane: str, *, purpose: str, within_s: float | None = None
    ) -> Message:
        self._check_peer(peer, lane)
        return self._inbox.receive(peer, lane, purpose, within_s)

    def has_message(self, peer: int, lane: str) -> bool:
        return self._inbox.has_message(peer, lane)

    def open_early(self, lanes: Collection[str], opener: Opener) -> None:
        self._inbox.open_early(lanes, opener)

    def abort(self, reason: str) -> None:
        if self.peers.close() is Lifecycle.OPEN:
            self._network.leave(self.node_id, reason)

    def close(self) -> None:
        if self.peers.close() is Lifecycle.OPEN:
            self._network.leave(self.node_id, None)

    def deliver(self, item: _Early) -> None:
        """Takes a message in; called by the network. Raises ProtocolError to refuse it."""
        if (size := item.message.num_bytes) > self._settings.max_payload_bytes:
            raise ProtocolError(
                f"a payload of {size} bytes came, "
                f"at most {self._settings.max_payload_bytes} are allowed"
            )
        if (item.sender, item.lane) not in self._lanes_in:
            self._lanes_in.add((item.sender, item.lane))
            self._inbox.open_lane(item.sender, item.lane, item.give_credit, item.window)
        self._inbox.deliver(item.sender, item.lane, item.message)

    def hear_of_end(self, peer: int, failure: str | None) -> None:
        """A peer has closed (None) or failed."""
        if failure is None:
            self.peers.left(peer)
        else:
            self.peers.failed(peer, failure)

    def _check_peer(self, peer: int, lane: str) -> None:
        if peer == self.node_id:
            raise TransportError(f"node {peer} is no peer of itself")
        check_lane(lane)

    def _window(self, peer: int, lane: str) -> SendWindow:
        with self._lock:
            key = (peer, lane)
            if key not in self._windows:
                self._windows[key] = SendWindow(self.peers, self._settings, peer, lane)
            return self._windows[key]
