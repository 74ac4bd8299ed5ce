"""The transport between processes: one gRPC server, one channel per peer, one stream per lane."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from ravnest.errors import ConfigError, TransportError
from ravnest.transport.address import is_loopback, split_address, why_unreachable
from ravnest.transport.bulk_listener import BulkListener
from ravnest.transport.credentials import Credentials, load_identity, name_of
from ravnest.transport.grpc_server import LinkServer, RefusalLog
from ravnest.transport.inbox import Inbox
from ravnest.transport.intakes import Intakes
from ravnest.transport.interface import (
    Formats,
    Message,
    Opener,
    PeerAddress,
    Transport,
    TransportSettings,
)
from ravnest.transport.knocking import Door
from ravnest.transport.limits import check_header, check_lane
from ravnest.transport.link import INCARNATION_BYTES
from ravnest.transport.outbound import Outbound, Sender
from ravnest.transport.parting import Parting
from ravnest.transport.payload import BufferPool
from ravnest.transport.peer_state import Lifecycle
from ravnest.transport.peers import PeerTable
from ravnest.transport.reception import Reception

_log = logging.getLogger(__name__)


class GrpcTransport(Transport):
    """Connects one node to its peers over gRPC.

    To every peer goes one control stream, from the start on, by which the peer sees that this
    node lives, leaves or has failed; each lane is a stream of its own, opened by its first send.
    When the connection breaks, all of them are opened again and go on where they were.

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
        self._rates = {peer.node_id: peer.rate_bps for peer in peers}
        self._check_addresses(insecure or credentials is not None)
        self._identity = None if credentials is None else load_identity(credentials, node_id)
        self._settings = settings or TransportSettings()
        incarnation = secrets.token_bytes(INCARNATION_BYTES)
        self._sender = Sender(node_id, incarnation, plan_sha256, formats or Formats())
        self._peers = PeerTable(
            node_id,
            self._settings,
            locate=lambda peer: self._addresses.get(peer, "an unknown address"),
            probe=lambda peer: why_unreachable(self._addresses[peer]),
        )
        self._inbox = Inbox(self._peers)
        self._intakes = Intakes(self._settings, self._inbox, self._reply)
        self._outbounds = {peer: self._outbound_to(peer) for peer in self._addresses}
        self._refusals = RefusalLog(node_id)
        self._server: LinkServer | None = None
        self._bulk: BulkListener | None = None
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
        assert self._server is not None
        self._server.start()
        for outbound in self._outbounds.values():
            outbound.start()

    def _listen(self) -> None:
        if self._settings.bulk:
            context = None if self._identity is None else self._identity.accepting
            # Those of other nodes of this host, which may not have started yet.
            planned = {split_address(a)[1] for a in (self._bind, *self._addresses.values())}
            self._bulk = BulkListener(self._bind, context, planned)
        reception = Reception(
            node_id=self.node_id,
            incarnation=self._sender.incarnation,
            plan_sha256=self._sender.plan_sha256,
            settings=self._settings,
            peers=self._peers,
            links={peer: outbound.link for peer, outbound in self._outbounds.items()},
            intakes=self._intakes,
            pool=BufferPool(),
            refused=self._refusals.add,
            arrived=lambda peer: self._outbounds[peer].look(),
            answered=lambda peer, request: self._outbounds[peer].answered(request),
            formats=self._sender.formats,
            bulk=self._bulk,
            is_secured=self._identity is not None,
        )
        self._server = LinkServer(self._bind, reception, self._identity)

    def send(self, peer: int, lane: str, message: Message, *, purpose: str) -> None:
        self._check_peer(peer, lane)
        check_header(message)
        self._outbounds[peer].lane(lane, purpose).send(message, purpose)

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
        with self._closing_lock:
            if self._peers.close() is not Lifecycle.OPEN:
                return
            try:
                self._parting().failing(reason)
                self._release()
            except Exception:  # the process is failing already; its own cause must come through
                _log.exception("node %d could not end its transport in order", self.node_id)

    def close(self) -> None:
        with self._closing_lock:
            if self._peers.close() is not Lifecycle.OPEN:
                return
            try:
                self._parting().in_order()
            finally:
                self._release()

    def _outbound_to(self, peer: int) -> Outbound:
        door = Door(self._addresses[peer], name_of(peer), self._identity, self._rates[peer])
        standing = partial(self._intakes.standing, peer)
        note = partial(self._intakes.note, peer)
        return Outbound(self._sender, peer, door, self._peers, self._settings, standing, note)

    def _reply(self, peer: int, request: bytes) -> None:
        self._outbounds[peer].control.tell(request)

    def _parting(self) -> Parting:
        outbounds = list(self._outbounds.values())
        return Parting(self.node_id, self._peers, self._settings, outbounds)

    def _release(self) -> None:
        """Cuts every stream, closes every channel, frees the port and joins all threads."""
        for outbound in self._outbounds.values():
            outbound.stop_opening()
        for outbound in self._outbounds.values():
            outbound.close()
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
