"""How a transport parts from its peers: what still has to arrive, and how long that may take."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ravnest.transport.interface import TransportSettings
from ravnest.transport.outbound import Outbound
from ravnest.transport.outgoing_lane import OutgoingLane
from ravnest.transport.peer_state import PeerState
from ravnest.transport.peers import PeerTable

_log = logging.getLogger(__name__)

# How long a failure may be held back by messages that are on their way.
DRAIN_S = 1.0
# How long a farewell may take to a peer that is there, and to one that never was.
FAREWELL_S = 3.0
FAREWELL_TO_ABSENT_S = 0.5


class Parting:
    """Ends the lanes to all peers, each after what was sent on it."""

    def __init__(
        self,
        node_id: int,
        peers: PeerTable,
        settings: TransportSettings,
        outbounds: Sequence[Outbound],
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._settings = settings
        self._outbounds = outbounds

    def in_order(self) -> None:
        """Delivers what is queued, also over links that come back, and says goodbye."""
        lanes = self._data_lanes()
        for lane in lanes:
            lane.finish()
        deadline = time.monotonic() + self._settings.timeout_s
        for lane in lanes:
            self._await_delivery(lane, deadline)
        self._say_farewell(None, self._settings.reconnect_s + FAREWELL_S)

    def failing(self, reason: str) -> None:
        """Lets what was sent arrive before the news of a failure, if that does not take long."""
        lanes = self._data_lanes()
        for lane in lanes:
            lane.drain()
        deadline = time.monotonic() + DRAIN_S
        for lane in lanes:
            if lane.is_open and not self._peers.state(lane.peer).is_final:
                lane.done.wait(max(0.0, deadline - time.monotonic()))
        self._say_farewell(reason, FAREWELL_TO_ABSENT_S)

    def _data_lanes(self) -> list[OutgoingLane]:
        return [lane for outbound in self._outbounds for lane in outbound.data_lanes()]

    def _await_delivery(self, lane: OutgoingLane, deadline: float) -> None:
        while not self._peers.state(lane.peer).is_final:
            left_s = deadline - time.monotonic()
            if lane.done.wait(max(0.0, min(left_s, self._settings.report_every_s))):
                return
            _log.warning(
                "node %d %s: node %d has yet to get the last %d messages of lane %r",
                self._node_id,
                "closes and drops them" if left_s <= 0 else "waits to close",
                lane.peer,
                lane.num_undelivered,
                lane.lane,
            )
            if left_s <= 0:
                return

    def _say_farewell(self, failure: str | None, reconnecting_s: float) -> None:
        """Tells all peers, and waits for each as long as makes sense.

        Args:
            reconnecting_s: for one whose link is broken.
        """
        for outbound in self._outbounds:
            outbound.control.finish(failure)
        limits_s = {
            PeerState.ABSENT: FAREWELL_TO_ABSENT_S,
            PeerState.CONNECTED: FAREWELL_S,
            PeerState.RECONNECTING: reconnecting_s,
        }
        started = time.monotonic()
        for outbound in self._outbounds:
            limit_s = limits_s.get(self._peers.state(outbound.peer), 0.0)
            outbound.control.done.wait(max(0.0, started + limit_s - time.monotonic()))
