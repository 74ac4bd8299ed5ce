"""Whether a node and a peer can talk both ways, and what it means when they cannot."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from enum import StrEnum

from ravnest.errors import ProtocolError
from ravnest.transport.peer_state import PeerState
from ravnest.transport.peers import PeerTable

_log = logging.getLogger(__name__)

INCARNATION_BYTES = 16


class _Way(StrEnum):
    """Where one direction of a link stands."""

    DOWN = "down"
    OPENING = "opening"
    UP = "up"


class Link:
    """Both directions between this node and one peer.

    Each node connects to the other, so there are two connections, which break one without the
    other. Each is counted by who makes it. A direction is up when all its lanes go on: the outgoing
    one when the peer has welcomed each, the incoming one when the peer has opened its control lane.

    A peer that was connected is RECONNECTING from the first break until both directions are up, for
    `reconnect_s` at most. News of a connection that a newer one has replaced are ignored.

    Args:
        reconnect_s: 0: a break is the end.
        changed: told when the link broke; who waits for a deadline has to look again.
    """

    def __init__(
        self,
        node_id: int,
        peer: int,
        peers: PeerTable,
        reconnect_s: float,
        changed: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self.peer = peer
        self._peers = peers
        self._reconnect_s = reconnect_s
        self._changed = changed
        self._lock = threading.RLock()
        self._incarnation = b""
        self._outgoing, self._outgoing_way = 0, _Way.DOWN
        self._incoming, self._incoming_way = 0, _Way.DOWN
        self._unwelcome: set[str] = set()
        self._cause = ""
        self._broke_at_s = 0.0
        self._num_again, self._bytes_again = 0, 0
        self._is_over = False

    @property
    def incarnation(self) -> bytes:
        """Which process the peer is; empty until it has come."""
        with self._lock:
            return self._incarnation

    @property
    def is_final(self) -> bool:
        """Whether there is no use in connecting any more."""
        return self._is_over or self._peers.state(self.peer).is_final

    @property
    def is_broken(self) -> bool:
        """Whether the peer was there and has to be connected with again."""
        return self._peers.state(self.peer) is PeerState.RECONNECTING

    def left_s(self) -> float | None:
        """Seconds until the peer is given up; None: it is not to be."""
        with self._lock:
            if not self.is_broken:
                return None
            return self._broke_at_s + self._reconnect_s - time.monotonic()

    def recognise(self, incarnation: bytes) -> None:
        """Raises ProtocolError unless this is the process that was the peer so far."""
        with self._lock:
            if len(incarnation) != INCARNATION_BYTES:
                raise ProtocolError(
                    f"an incarnation of {len(incarnation)} bytes came, expected {INCARNATION_BYTES}"
                )
            if self._incarnation in (b"", incarnation):
                self._incarnation = incarnation
                return
            if self.is_broken:
                self.restarted()
                raise ProtocolError(f"node {self.peer} was lost before; it cannot come again")
        raise ProtocolError(
            f"node {self.peer} comes again, from another process, while the first is connected; "
            f"expected one process per node"
        )

    def connecting(self, lanes: Iterable[str]) -> int:
        """A connection to the peer is about to carry these lanes; returns its number."""
        with self._lock:
            self._outgoing += 1
            self._outgoing_way = _Way.OPENING
            self._unwelcome = set(lanes)
            return self._outgoing

    def welcomed(
        self, connection: int, lane: str, num_again: int = 0, bytes_again: int = 0
    ) -> None:
        """The peer goes on with a lane of that connection, of which so much is sent again."""
        with self._lock:
            if connection != self._outgoing or self._outgoing_way is _Way.DOWN:
                return
            self._num_again += num_again
            self._bytes_again += bytes_again
            self._unwelcome.discard(lane)
            if not self._unwelcome:
                self._outgoing_way = _Way.UP
                self._mend()

    def greeted(self, connection: int, *, is_control: bool) -> None:
        """The peer has opened a lane on its connection to this node."""
        with self._lock:
            if connection < self._incoming:
                return
            if connection > self._incoming:
                self._incoming, self._incoming_way = connection, _Way.OPENING
            if is_control and self._incoming_way is _Way.OPENING:
                self._incoming_way = _Way.UP
            if self._peers.state(self.peer) is PeerState.ABSENT:
                self._peers.connected(self.peer)
            self._mend()

    def outgoing_broke(self, connection: int, cause: str) -> None:
        """The connection to the peer does not carry its lanes any more."""
        with self._lock:
            if connection == self._outgoing and self._outgoing_way is not _Way.DOWN:
                self._outgoing_way = _Way.DOWN
                self._break(cause)

    def incoming_broke(self, connection: int, cause: str) -> None:
        """The connection from the peer does not carry its lanes any more."""
        with self._lock:
            if connection == self._incoming and self._incoming_way is not _Way.DOWN:
                self._incoming_way = _Way.DOWN
                self._break(cause)

    def give_up(self, why: str) -> None:
        """The peer is lost."""
        with self._lock:
            if self.is_broken:
                away_s = time.monotonic() - self._broke_at_s
                self._peers.lost(self.peer, f"{self._cause}; {why} ({away_s:.1f} s later)")

    def restarted(self) -> None:
        """Another process has taken the peer's place; what the first one knew is gone."""
        with self._lock:
            words = f"{self._cause}; it" if self.is_broken else "it"
            self._peers.lost(self.peer, f"{words} was started again and knows nothing of this run")
        self._changed()

    def end(self) -> None:
        """This node is about to cut both directions itself."""
        with self._lock:
            self._is_over = True

    def _break(self, cause: str) -> None:
        if self.is_final:
            return
        state = self._peers.state(self.peer)
        if not self._reconnect_s:
            self._peers.lost(self.peer, cause)
        elif state is PeerState.CONNECTED:
            self._cause, self._broke_at_s = cause, time.monotonic()
            self._num_again, self._bytes_again = 0, 0
            self._peers.broke(self.peer)
            _log.warning(
                "node %d: the link to node %d broke: %s; what was under way will be sent again "
                "if it is back within %g s",
                self._node_id,
                self.peer,
                cause,
                self._reconnect_s,
            )
        self._changed()

    def _mend(self) -> None:
        if self._outgoing_way is not _Way.UP or self._incoming_way is not _Way.UP:
            return
        if self.is_broken and not self._is_over:
            self._peers.connected(self.peer)
            _log.warning(
                "node %d: the link to node %d is back after %.1f s; nothing is lost, "
                "%d messages (%.1f MB) are sent again",
                self._node_id,
                self.peer,
                time.monotonic() - self._broke_at_s,
                self._num_again,
                self._bytes_again / 1e6,
            )
