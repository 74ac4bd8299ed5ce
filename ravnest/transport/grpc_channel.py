"""One peer's gRPC channel, made once the peer is there; until then a knock now and then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from ravnest.errors import ProtocolError
from ravnest.transport.grpc_options import CHANNEL_OPTIONS, METHOD, SERVICE, grpc
from ravnest.transport.grpc_outgoing import Call, OutgoingLane
from ravnest.transport.knocking import Door

FIRST_KNOCK_S = 0.1
KNOCK_GROWTH = 1.6
LAST_KNOCK_S = 4.0


class PeerChannel:
    """Waits for a peer for as long as it takes, then opens the lanes that wait.

    A gRPC channel to an absent peer keeps a core busy: its threads wake dozens of times a second,
    those of every open stream ten times more, and it tries to connect every second. Plain attempts,
    fewer and fewer, cost little; and a peer that comes connects to this node as well, upon which it
    is knocked at without delay. gRPC only comes in when somebody listens.

    Args:
        door: of the peer.
        name: of the thread that knocks.
        turned_away: told why there is no use in knocking again.
    """

    def __init__(self, door: Door, name: str, turned_away: Callable[[str], None]) -> None:
        self._door = door
        self._turned_away = turned_away
        self._channel: grpc.Channel | None = None
        self._lock = threading.Lock()
        self._waiting: list[OutgoingLane] = []
        self._is_closing = False
        self._wake = threading.Event()
        self._knocker = threading.Thread(target=self._knock, name=name, daemon=True)

    def start(self) -> None:
        """Begins to knock."""
        self._knocker.start()

    def open(self, lane: OutgoingLane) -> None:
        """Opens the lane, at once or when the peer comes."""
        with self._lock:
            if self._channel is not None:
                lane.open()
            elif not self._is_closing:
                self._waiting.append(lane)

    def open_stream(self, requests: Iterator[bytes]) -> Call:
        """Starts a stream from its requests; only lanes that were opened call it."""
        assert self._channel is not None
        method = self._channel.stream_unary(f"/{SERVICE}/{METHOD}", None, None)
        return method.future(requests, wait_for_ready=True)

    def knock_now(self) -> None:
        """The peer has shown itself: tries at once."""
        self._wake.set()

    def stop_opening(self) -> None:
        """From now on no lane is opened; to call before the lanes are cut."""
        with self._lock:
            self._is_closing = True
            self._waiting.clear()
        self._wake.set()
        if self._knocker.ident is not None:
            self._knocker.join()

    def close(self) -> None:
        """Ends the connection, if there is one."""
        self.stop_opening()
        if self._channel is not None:
            self._channel.close()

    def _knock(self) -> None:
        pause_s = FIRST_KNOCK_S
        while not self._is_closing:
            try:
                is_open = self._door.is_open()
            except ProtocolError as error:
                self._turned_away(error.message)
                return
            if is_open:
                self._come_in()
                return
            self._wake.wait(pause_s)
            self._wake.clear()
            pause_s = min(LAST_KNOCK_S, pause_s * KNOCK_GROWTH)

    def _come_in(self) -> None:
        with self._lock:
            if self._is_closing:
                return
            self._channel = _channel_to(self._door)
            lanes, self._waiting = self._waiting, []
            for lane in lanes:
                lane.open()


def _channel_to(door: Door) -> grpc.Channel:
    if door.identity is None:
        return grpc.insecure_channel(door.address, options=CHANNEL_OPTIONS)
    identity = door.identity
    secured = grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)
    # Nodes are known by their ids; addresses may change.
    named = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", door.name))
    return grpc.secure_channel(door.address, secured, options=named)
