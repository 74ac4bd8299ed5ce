"""The lanes that peers send to a node, by peer and name, whatever stream carries them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ravnest.transport.inbox import Inbox
from ravnest.transport.interface import TransportSettings
from ravnest.transport.lane_intake import LaneIntake


class Intakes:
    """Makes each lane once, when it is opened first.

    Args:
        reply: sends a request to a peer on the control lane to it.
    """

    def __init__(
        self, settings: TransportSettings, inbox: Inbox, reply: Callable[[int, bytes], None]
    ) -> None:
        self._settings = settings
        self._inbox = inbox
        self._reply = reply
        self._lanes: dict[tuple[int, str], LaneIntake] = {}
        self._of_peer: dict[int, tuple[LaneIntake, ...]] = {}
        self._lock = threading.Lock()

    def lane(self, sender: int, lane: str) -> LaneIntake:
        """That lane of a peer; ProtocolError when it may not have it."""
        with self._lock:
            if (found := self._lanes.get((sender, lane))) is None:
                tell = partial(self._reply, sender)
                found = LaneIntake(self._settings, self._inbox, sender, lane, tell)
                self._lanes[sender, lane] = found
                self._of_peer[sender] = (*self._of_peer.get(sender, ()), found)
            return found

    def note(self, sender: int) -> bytes:
        """What the next message to a peer should take along about one of its lanes, or nothing."""
        for lane in self._of_peer.get(sender, ()):
            if (note := lane.note()) is not None:
                return note
        return b""

    def standing(self, sender: int) -> list[bytes]:
        """What a peer has to know of its lanes that may have missed everything."""
        lanes = self._of_peer.get(sender, ())
        return [request for lane in lanes if (request := lane.standing()) is not None]
