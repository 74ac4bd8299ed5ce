"""The states of a transport and of its peers, and which may follow which."""

from __future__ import annotations

from enum import StrEnum


class PeerState(StrEnum):
    """What is known of a peer; the three last states are final."""

    ABSENT = "absent"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    LEFT = "left"
    FAILED = "failed"
    LOST = "lost"

    @property
    def is_final(self) -> bool:
        """Whether nothing will come from that peer, nor reach it, any more."""
        return not _NEXT[self]

    def may_become(self, state: PeerState) -> bool:
        """Whether that state may follow this one."""
        return state in _NEXT[self]


_NEXT: dict[PeerState, frozenset[PeerState]] = {
    PeerState.ABSENT: frozenset(PeerState) - {PeerState.ABSENT, PeerState.RECONNECTING},
    PeerState.CONNECTED: frozenset(PeerState) - {PeerState.ABSENT, PeerState.CONNECTED},
    PeerState.RECONNECTING: frozenset(PeerState) - {PeerState.ABSENT, PeerState.RECONNECTING},
    PeerState.LEFT: frozenset(),
    PeerState.FAILED: frozenset(),
    PeerState.LOST: frozenset(),
}


class Lifecycle(StrEnum):
    """Where the transport itself stands."""

    NEW = "not started"
    OPEN = "open"
    CLOSED = "closed"
