"""One peer's gRPC channel: made when the peer is there, and again when the connection breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from ravnest.errors import ProtocolError
from ravnest.transport.grpc_options import CHANNEL_OPTIONS, METHOD, SERVICE, grpc
from ravnest.transport.grpc_outgoing import Call
from ravnest.transport.knocking import Answer, Door
from ravnest.transport.link import Link
from ravnest.transport.outgoing_lane import OutgoingLane

FIRST_KNOCK_S = 0.1
KNOCK_GROWTH = 1.6
LAST_KNOCK_S = 4.0
# At a peer that was there, which is for `reconnect_s` only.
FIRST_AGAIN_S = 0.02
LAST_AGAIN_S = 1.0
# Answers of a host in a row whose process says nothing: it is frozen.
MAX_SILENT = 2


class PeerChannel:
    """Waits for a peer for as long as it takes, then opens the lanes to it; the same after a break.

    A gRPC channel to an absent peer keeps a core busy: its threads wake dozens of times a second,
    those of every open stream ten times more, and it tries to connect every second. Plain attempts,
    fewer and fewer, cost little; and a peer that comes connects to this node as well, upon which it
    is knocked at without delay. gRPC only comes in when somebody listens.

    A peer that was there is given up when its host says that nobody listens any more, when the
    process accepts connections but says nothing, or when the link's time is over.

    Args:
        door: of the peer.
        name: of the thread that does all this.
        refused: told why there is no use in connecting.
    """

    def __init__(self, door: Door, name: str, refused: Callable[[str], None]) -> None:
        self._door = door
        self._refused = refused
        self._channel: grpc.Channel | None = None
        self._lock = threading.Lock()
        self._lanes: list[OutgoingLane] = []
        self._connection = 0
        self._broken_connection = 0
        self._connected_at_s = 0.0
        self._num_delivered = 0
        self._is_closing = False
        self._pause_s = FIRST_KNOCK_S
        self._wake = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=name, daemon=True)

    def start(self, link: Link) -> None:
        """Begins to knock."""
        self._link = link
        self._keeper.start()

    def open(self, lane: OutgoingLane) -> None:
        """Opens the lane, at once or when the peer comes, and again after every break."""
        with self._lock:
            self._lanes.append(lane)
            if self._channel is not None and not self._is_closing:
                lane.open(self._connection, self._open_stream)

    def look(self) -> None:
        """Something about the peer has changed: it has shown itself, or the link broke."""
        self._wake.set()

    def broke(self, connection: int, cause: str) -> None:
        """A stream of that connection broke: all of them are to be opened again on a new one."""
        self._link.outgoing_broke(connection, cause)
        if connection > self._broken_connection:
            self._broken_connection = connection
            self._wake.set()

    def stop_opening(self) -> None:
        """From now on no lane is opened; to call before the lanes are cut."""
        with self._lock:
            self._is_closing = True
        self._wake.set()
        if self._keeper.ident is not None:
            self._keeper.join()

    def close(self) -> None:
        """Ends the connection, if there is one."""
        self.stop_opening()
        if self._channel is not None:
            self._channel.close()

    def _keep(self) -> None:
        while self._await_peer():
            self._connect()
            self._await_break()
            if self._is_closing:
                return
            self._disconnect()
        if not self._is_closing:
            self._abandon()

    def _await_peer(self) -> bool:
        """Knocks until the peer is there; false when there is no use any more."""
        num_silent = 0
        if self._was_useless():
            self._rest()
        while not self._is_closing and not self._link.is_final:
            if (answer := self._knock()) is Answer.OPEN:
                return True
            num_silent = num_silent + 1 if answer is Answer.SILENT else 0
            if answer is Answer.REFUSED:
                self._link.give_up("nobody listens at its address any more")
            elif num_silent >= MAX_SILENT:
                self._link.give_up("its host answers, but the process says nothing")
            else:
                self._rest()
        return False

    def _knock(self) -> Answer:
        try:
            if self._link.is_broken:
                return self._door.knock()
            return Answer.OPEN if self._door.is_open() else Answer.AWAY
        except ProtocolError as error:
            self._refused(error.message)
            return Answer.AWAY

    def _rest(self) -> None:
        left_s = self._link.left_s()
        if left_s is not None and left_s <= 0:
            self._link.give_up("it was not to be reached again")
            return
        self._wake.wait(self._pause_s if left_s is None else min(self._pause_s, left_s))
        self._wake.clear()
        longest_s = LAST_KNOCK_S if left_s is None else LAST_AGAIN_S
        self._pause_s = min(longest_s, self._pause_s * KNOCK_GROWTH)

    def _was_useless(self) -> bool:
        """Whether the last connection broke at once and brought nothing: no haste then."""
        before, self._num_delivered = (
            self._num_delivered,
            sum(lane.num_acknowledged for lane in self._lanes),
        )
        is_useless = (
            self._connection > 0
            and self._num_delivered == before
            and time.monotonic() - self._connected_at_s < LAST_KNOCK_S
        )
        if self._connection > 0 and not is_useless:
            self._pause_s = FIRST_AGAIN_S
        return is_useless

    def _connect(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            lanes = [lane for lane in self._lanes if not lane.done.is_set()]
            self._channel = _channel_to(self._door)
            self._connected_at_s = time.monotonic()
            self._connection = self._link.connecting(lane.lane for lane in lanes)
            for lane in lanes:
                lane.open(self._connection, self._open_stream)

    def _await_break(self) -> None:
        """Waits, and sees to it that a peer that does not come back from its side is given up."""
        while not self._is_closing and self._broken_connection < self._connection:
            left_s = self._link.left_s()
            if left_s is not None and left_s <= 0:
                self._link.give_up("it did not connect again")
                left_s = None
            self._wake.wait(left_s)
            self._wake.clear()

    def _disconnect(self) -> None:
        with self._lock:
            channel, self._channel = self._channel, None
            lanes = list(self._lanes)
        for lane in lanes:
            lane.suspend()
        if channel is not None:
            channel.close()

    def _abandon(self) -> None:
        with self._lock:
            lanes = list(self._lanes)
        for lane in lanes:
            lane.cut()

    def _open_stream(self, requests: Iterator[bytes]) -> Call:
        assert self._channel is not None
        method = self._channel.stream_unary(f"/{SERVICE}/{METHOD}", None, None)
        return method.future(requests)


def _channel_to(door: Door) -> grpc.Channel:
    if door.identity is None:
        return grpc.insecure_channel(door.address, options=CHANNEL_OPTIONS)
    identity = door.identity
    secured = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
    # Nodes are known by their ids; addresses may change.
    named = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", door.name))
    return grpc.secure_channel(door.address, secured, options=named)
