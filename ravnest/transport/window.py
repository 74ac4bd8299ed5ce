"""The sending half's share in flow control: how many messages a peer has not consumed yet."""

from __future__ import annotations

from ravnest.errors import ProtocolError
from ravnest.transport.interface import TransportSettings
from ravnest.transport.peers import PeerTable, Waiting


class SendWindow:
    """Counts the unconsumed messages of one lane and holds the sender back when it is full."""

    def __init__(self, peers: PeerTable, settings: TransportSettings, peer: int, lane: str) -> None:
        self._peers = peers
        self._size = settings.window
        self._peer = peer
        self._lane = lane
        self._unconsumed = 0

    def take(self, purpose: str) -> None:
        """Takes one credit, waiting for it; raises as `Transport.send` does."""

        def attempt() -> bool | None:
            self._peers.check(self._peer, purpose)
            if self._unconsumed >= self._size:
                return None
            self._unconsumed += 1
            return True

        self._peers.wait(Waiting(self._peer, "take in", self._lane, purpose), attempt)

    def give(self, num_credits: int) -> None:
        """Gives credits back.

        Raises:
            ProtocolError: more come back than were taken.
        """
        with self._peers.condition:
            if not 0 < num_credits <= self._unconsumed:
                raise ProtocolError(
                    f"node {self._peer} gives {num_credits} credits on lane {self._lane!r}; "
                    f"{self._unconsumed} messages are unconsumed"
                )
            was_full = self._unconsumed >= self._size
            self._unconsumed -= num_credits
            if was_full:
                self._peers.condition.notify_all()
