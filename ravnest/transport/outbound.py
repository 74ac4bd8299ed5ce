"""All that goes from a node to one peer: its lanes, on one connection after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from ravnest.errors import ProtocolError
from ravnest.transport.bulk_dialer import BulkDialer
from ravnest.transport.envelope import CONTROL_LANE, Caller, hello
from ravnest.transport.grpc_channel import PeerChannel
from ravnest.transport.grpc_outgoing import Ends, OutgoingStream
from ravnest.transport.interface import Formats, TransportSettings
from ravnest.transport.knocking import Door
from ravnest.transport.link import Link
from ravnest.transport.outgoing_lane import OutgoingLane
from ravnest.transport.pb import link_pb2
from ravnest.transport.peers import PeerTable


@dataclass(frozen=True, slots=True)
class Sender:
    """What a node says of itself in every Hello.

    Attributes:
        incarnation: of this process.
    """

    node_id: int
    incarnation: bytes
    plan_sha256: str
    formats: Formats


class Outbound:
    """Opens lanes to one peer and hears what the peer answers on its control lane.

    Args:
        standing: what the peer has to know of the lanes it sends, when a control stream begins.
        take_note: what it should know of them when a message goes to it anyway, or nothing.
    """

    def __init__(
        self,
        sender: Sender,
        peer: int,
        door: Door,
        peers: PeerTable,
        settings: TransportSettings,
        standing: Callable[[], Iterable[bytes]],
        take_note: Callable[[], bytes],
    ) -> None:
        self.peer = peer
        self._sender = sender
        self._peers = peers
        self._settings = settings
        self._standing = standing
        self._dialer = BulkDialer(door, take_note)
        self._channel = PeerChannel(
            door, f"ravnest-knock-{peer}", partial(peers.broke_protocol, peer)
        )
        self.link = Link(sender.node_id, peer, peers, settings.reconnect_s, self._channel.look)
        self._lock = threading.Lock()
        self.control = OutgoingLane(peers, settings, peer, CONTROL_LANE, self._make_stream)
        self._lanes: dict[str, OutgoingLane] = {}

    def start(self) -> None:
        """Begins to connect; to call once peers can be answered."""
        self._channel.open(self.control)
        self._channel.start(self.link)

    def look(self) -> None:
        """The peer has shown itself, or has parted."""
        self._channel.look()

    def lane(self, name: str, purpose: str) -> OutgoingLane:
        """That lane, opened by the first call; raises when nothing can be sent any more."""
        if (lane := self._lanes.get(name)) is not None:  # which sees itself whether it may send
            return lane
        with self._lock:
            # Under the lock: no lane is opened once closing has begun.
            self._peers.check(self.peer, purpose)
            if (lane := self._lanes.get(name)) is None:
                lane = OutgoingLane(self._peers, self._settings, self.peer, name, self._make_stream)
                self._channel.open(lane)
                self._lanes[name] = lane
            return lane

    def data_lanes(self) -> list[OutgoingLane]:
        """All lanes but the control lane."""
        with self._lock:
            return list(self._lanes.values())

    def answered(self, request: link_pb2.ToReceiver) -> None:
        """The peer welcomes, credits or refuses a lane; ProtocolError when it cannot."""
        match request.WhichOneof("body"):
            case "welcome":
                welcome = request.welcome
                if (again := self._opened(welcome.lane).welcomed(welcome)) is not None:
                    self.link.welcomed(welcome.connection, welcome.lane, *again)
            case "credit":
                self._opened(request.credit.lane).credited(request.credit)
            case _:
                lane = self._opened(request.refusal.lane)
                self._refused(lane, f"it refuses lane {lane.lane!r}: {request.refusal.reason}")

    def _opened(self, name: str) -> OutgoingLane:
        if name == CONTROL_LANE:
            return self.control
        with self._lock:
            lane = self._lanes.get(name)
        if lane is None:
            raise ProtocolError(
                f"node {self.peer} answers lane {name!r}, which this node has not opened"
            )
        return lane

    def stop_opening(self) -> None:
        """From now on nothing is opened, and a break is no news."""
        self.link.end()
        self._channel.stop_opening()

    def close(self) -> None:
        """Cuts all lanes and ends the connection; after `stop_opening`."""
        for lane in (self.control, *self.data_lanes()):
            lane.cut()
        self._channel.close()

    def _make_stream(self, lane: OutgoingLane, connection: int) -> OutgoingStream:
        sender = self._sender
        if lane.is_control:
            self._dialer.renew()
        caller = Caller(sender.incarnation, self.link.incarnation, connection)
        greeting = hello(
            sender.plan_sha256, sender.node_id, self.peer, lane.lane, sender.formats, caller
        )
        ends = Ends(
            said_all=partial(self._said_all, lane, connection),
            broke=partial(self._channel.broke, connection),
            refused=partial(self._refused, lane),
            is_another=self.link.restarted,
        )
        preface = self._standing if lane.is_control else tuple
        return OutgoingStream(lane.lane, greeting, preface, self._dialer, ends)

    def _said_all(self, lane: OutgoingLane, connection: int) -> None:
        lane.done.set()
        self.link.welcomed(connection, lane.lane)

    def _refused(self, lane: OutgoingLane, reason: str) -> None:
        self._peers.broke_protocol(self.peer, reason)
        lane.done.set()
