"""The transport between processes: one gRPC server, one channel per peer, one stream per lane."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial

from ravnest.errors import ConfigError, ProtocolError, TransportError
from ravnest.transport.address import is_loopback, split_address, why_unreachable
from ravnest.transport.bulk_dialer import BulkDialer
from ravnest.transport.bulk_listener import BulkListener
from ravnest.transport.credentials import Credentials, load_identity, name_of
from ravnest.transport.envelope import CONTROL_LANE, hello, offer_of
from ravnest.transport.grpc_channel import PeerChannel
from ravnest.transport.grpc_outgoing import OutgoingLane
from ravnest.transport.grpc_server import LinkServer, RefusalLog
from ravnest.transport.inbox import Inbox
from ravnest.transport.interface import (
    Formats,
    Message,
    PeerAddress,
    Transport,
    TransportSettings,
)
from ravnest.transport.knocking import Door
from ravnest.transport.limits import check_header, check_lane
from ravnest.transport.payload import BufferPool
from ravnest.transport.pb import link_pb2
from ravnest.transport.peers import Lifecycle, PeerState, PeerTable
from ravnest.transport.reception import Reception

_log = logging.getLogger(__name__)

# How long a failure may be held back by messages that are on their way.
DRAIN_S = 1.0
# How long a farewell may take to a peer that is there, and to one that never was.
FAREWELL_S = 3.0
FAREWELL_TO_ABSENT_S = 0.5


class GrpcTransport(Transport):
    """Connects one node to its peers over gRPC.

    To every peer goes one control stream, from the start on, by which the peer sees that this
    node lives, leaves or has failed; each lane is a stream of its own, opened by its first send.

    Args:
        node_id: this node.
        bind: `host:port` to listen on; port 0 takes any free one (see `port`).
        peers: every node messages are exchanged with, and its address.
        plan_sha256: hash of the plan; peers of another plan are refused.
        settings: deadlines, window and limits.
        formats: of the payloads sent and received; peers that cannot read theirs are refused.
        credentials: with them every connection is encrypted, and both ends show certificates of
            one authority for their node ids; peers need them too.
        insecure: allow addresses that are not loopback without credentials, although nothing is
            encrypted then and anybody who reaches the port may pose as a peer.

    Raises:
        ConfigError: an address is malformed, or not loopback without `insecure` or credentials; or
            credentials cannot be used.
    """

    def __init__(
        self,
        node_id: int,
        bind: str,
        peers: Sequence[PeerAddress],
        plan_sha256: str,
        settings: TransportSettings | None = None,
        *,
        formats: Formats | None = None,
        credentials: Credentials | None = None,
        insecure: bool = False,
    ) -> None:
        self.node_id = node_id
        self._bind = bind
        self._addresses = {peer.node_id: peer.address for peer in peers if peer.node_id != node_id}
        self._check_addresses(insecure or credentials is not None)
        self._identity = None if credentials is None else load_identity(credentials, node_id)
        self._plan_sha256 = plan_sha256
        self._settings = settings or TransportSettings()
        self._formats = formats or Formats()
        self._peers = PeerTable(
            node_id,
            self._settings,
            locate=lambda peer: self._addresses.get(peer, "an unknown address"),
            probe=lambda peer: why_unreachable(self._addresses[peer]),
        )
        self._inbox = Inbox(self._peers)
        self._refusals = RefusalLog(node_id)
        self._server: LinkServer | None = None
        self._bulk: BulkListener | None = None
        self._channels: dict[int, PeerChannel] = {}
        self._dialers: dict[int, BulkDialer] = {}
        self._lanes: dict[tuple[int, str], OutgoingLane] = {}
        self._lanes_lock = threading.Lock()
        self._closing_lock = threading.Lock()

    @property
    def port(self) -> int:
        """The port listened on; TransportError before `start`."""
        if self._server is None:
            raise TransportError(f"the transport of node {self.node_id} does not listen yet")
        return self._server.port

    @property
    def num_refused(self) -> int:
        """Streams refused so far: strangers, other plans, broken protocol."""
        return self._refusals.count

    def start(self) -> None:
        self._peers.open()
        try:
            self._listen()
        except BaseException:
            if self._bulk is not None:
                self._bulk.stop()
                self._bulk.join()
            self._peers.close()
            raise
        for peer, address in self._addresses.items():
            door = Door(address, name_of(peer), self._identity)
            self._dialers[peer] = BulkDialer(door)
            self._channels[peer] = PeerChannel(
                door, f"ravnest-knock-{peer}", partial(self._peers.broke_protocol, peer)
            )
            self._lane(peer, CONTROL_LANE, "the control stream")
        # Only now: whoever comes is answered on the control lane to it.
        assert self._server is not None
        self._server.start()
        for channel in self._channels.values():
            channel.start()

    def _listen(self) -> None:
        if self._settings.bulk:
            context = None if self._identity is None else self._identity.accepting
            # Those of other nodes of this host, which may not have started yet.
            planned = {split_address(a)[1] for a in (self._bind, *self._addresses.values())}
            self._bulk = BulkListener(self._bind, context, planned)
        reception = Reception(
            node_id=self.node_id,
            plan_sha256=self._plan_sha256,
            expected=frozenset(self._addresses),
            settings=self._settings,
            peers=self._peers,
            inbox=self._inbox,
            pool=BufferPool(),
            refused=self._refusals.add,
            arrived=self._arrived,
            reply=self._reply,
            answered=self._answered,
            formats=self._formats,
            bulk=self._bulk,
            is_secured=self._identity is not None,
        )
        self._server = LinkServer(self._bind, reception, self._identity)

    def send(self, peer: int, lane: str, message: Message, *, purpose: str) -> None:
        self._check_peer(peer, lane)
        check_header(message)
        self._lane(peer, lane, purpose).send(message, purpose)

    def receive(
        self, peer: int, lane: str, *, purpose: str, within_s: float | None = None
    ) -> Message:
        self._check_peer(peer, lane)
        return self._inbox.receive(peer, lane, purpose, within_s)

    def abort(self, reason: str) -> None:
        with self._closing_lock:
            if self._peers.close() is not Lifecycle.OPEN:
                return
            try:
                self._drain()
                self._say_farewell(reason)
                self._release()
            except Exception:  # the process is failing already; its own cause must come through
                _log.exception("node %d could not end its transport in order", self.node_id)

    def close(self) -> None:
        with self._closing_lock:
            if self._peers.close() is not Lifecycle.OPEN:
                return
            try:
                self._deliver_rest()
                self._say_farewell(None)
            finally:
                self._release()

    def _lane(self, peer: int, lane: str, purpose: str) -> OutgoingLane:
        with self._lanes_lock:
            # Under the lock: no lane is opened once closing has begun.
            self._peers.check(peer, purpose)
            if (peer, lane) not in self._lanes:
                outgoing = OutgoingLane(
                    self._peers,
                    self._settings,
                    peer,
                    lane,
                    hello=hello(self._plan_sha256, self.node_id, peer, lane, self._formats),
                    open_stream=self._channels[peer].open_stream,
                    dialer=self._dialers[peer],
                )
                self._channels[peer].open(outgoing)
                self._lanes[peer, lane] = outgoing
            return self._lanes[peer, lane]

    def _arrived(self, peer: int) -> None:
        # A peer may arrive while `start` is still at work; then it is about to be knocked at.
        if (channel := self._channels.get(peer)) is not None:
            channel.knock_now()

    def _reply(self, peer: int, request: bytes) -> None:
        with self._lanes_lock:
            control = self._lanes[peer, CONTROL_LANE]
        control.tell(request)

    def _answered(self, peer: int, request: link_pb2.ToReceiver) -> None:
        is_welcome = request.WhichOneof("body") == "welcome"
        name = request.welcome.lane if is_welcome else request.credit.lane
        with self._lanes_lock:
            lane = self._lanes.get((peer, name))
        if lane is None or name == CONTROL_LANE:
            raise ProtocolError(
                f"node {peer} answers lane {name!r}, which this node has not opened"
            )
        if is_welcome:
            lane.welcomed(request.welcome.window, offer_of(request.welcome))
        else:
            lane.credited(request.credit.num_messages)

    def _open_lanes(self) -> list[OutgoingLane]:
        with self._lanes_lock:
            return list(self._lanes.values())

    def _drain(self) -> None:
        """Lets what was sent arrive before the news of a failure, if that does not take long."""
        lanes = self._data_lanes()
        for lane in lanes:
            lane.drain()
        deadline = time.monotonic() + DRAIN_S
        for lane in lanes:
            if lane.is_open and not self._peers.state(lane.peer).is_final:
                lane.done.wait(max(0.0, deadline - time.monotonic()))

    def _data_lanes(self) -> list[OutgoingLane]:
        return [lane for lane in self._open_lanes() if lane.lane != CONTROL_LANE]

    def _deliver_rest(self) -> None:
        lanes = self._data_lanes()
        for lane in lanes:
            lane.finish()
        deadline = time.monotonic() + self._settings.timeout_s
        for lane in lanes:
            self._await_delivery(lane, deadline)

    def _await_delivery(self, lane: OutgoingLane, deadline: float) -> None:
        while not self._peers.state(lane.peer).is_final:
            left_s = deadline - time.monotonic()
            if lane.done.wait(max(0.0, min(left_s, self._settings.report_every_s))):
                return
            num_left = lane.num_undelivered()
            _log.warning(
                "node %d %s: node %d has yet to get the last %d messages of lane %r",
                self.node_id,
                "closes and drops them" if left_s <= 0 else "waits to close",
                lane.peer,
                num_left,
                lane.lane,
            )
            if left_s <= 0:
                return

    def _say_farewell(self, failure: str | None) -> None:
        controls = [lane for lane in self._open_lanes() if lane.lane == CONTROL_LANE]
        for lane in controls:
            lane.finish(failure)
        started = time.monotonic()
        for lane in controls:
            state = self._peers.state(lane.peer)
            if state.is_final:
                continue
            limit_s = FAREWELL_TO_ABSENT_S if state is PeerState.ABSENT else FAREWELL_S
            lane.done.wait(max(0.0, started + limit_s - time.monotonic()))

    def _release(self) -> None:
        """Cuts every stream, closes every channel, frees the port and joins all threads."""
        for channel in self._channels.values():
            channel.stop_opening()
        for lane in self._open_lanes():
            lane.cut()
        for channel in self._channels.values():
            channel.close()
        if self._bulk is not None:
            self._bulk.stop()
        if self._server is not None:
            self._server.stop()
        if self._bulk is not None:
            self._bulk.join()

    def _check_addresses(self, may_be_exposed: bool) -> None:
        addresses: Iterable[str] = (self._bind, *self._addresses.values())
        for address in addresses:
            split_address(address)
        exposed = [address for address in addresses if not is_loopback(address)]
        if exposed and not may_be_exposed:
            raise ConfigError(
                f"node {self.node_id} would use {', '.join(exposed)}, which is not loopback, "
                "and without credentials nothing is encrypted or authenticated",
                hint="pass credentials, or insecure=True if everybody who reaches these "
                "addresses is trusted",
            )

    def _check_peer(self, peer: int, lane: str) -> None:
        if peer not in self._addresses:
            raise TransportError(
                f"node {peer} is no peer of node {self.node_id}; "
                f"its peers are {sorted(self._addresses)}"
            )
        check_lane(lane)
