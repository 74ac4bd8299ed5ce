"""What every incoming stream of a node needs, and whom it lets in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ravnest.errors import ProtocolError
from ravnest.transport.bulk_listener import BulkListener
from ravnest.transport.credentials import name_of
from ravnest.transport.envelope import PROTOCOL_VERSION
from ravnest.transport.intakes import Intakes
from ravnest.transport.interface import Formats, TransportSettings
from ravnest.transport.limits import MAX_FORMATS, MAX_LANE_CHARS
from ravnest.transport.link import Link
from ravnest.transport.payload import BufferPool
from ravnest.transport.pb import link_pb2
from ravnest.transport.peer_state import PeerState
from ravnest.transport.peers import PeerTable

_PAST = {PeerState.LEFT: "left", PeerState.FAILED: "failed", PeerState.LOST: "was lost"}


@dataclass(frozen=True, slots=True)
class Reception:
    """What every incoming stream of a node needs.

    Attributes:
        incarnation: of this process.
        links: to every expected peer.
        intakes: the lanes that peers send.
        refused: told where every refused stream came from, and the reason.
        arrived: told which peer has opened a stream, or has parted.
        answered: told the Welcome, Credit or Refusal that a peer gives to a lane of this node.
        formats: a peer that does not understand what it will be sent is refused.
        bulk: where peers may bring messages, None when they have to come over gRPC.
        is_secured: peers have to show a certificate for their id.
        hello_timeout_s: a stream that says nothing for so long is cut.
    """

    node_id: int
    incarnation: bytes
    plan_sha256: str
    settings: TransportSettings
    peers: PeerTable
    links: Mapping[int, Link]
    intakes: Intakes
    pool: BufferPool
    refused: Callable[[str, str], None]
    arrived: Callable[[int], None]
    answered: Callable[[int, link_pb2.ToReceiver], None]
    formats: Formats = field(default_factory=Formats)
    bulk: BulkListener | None = None
    is_secured: bool = False
    hello_timeout_s: float = 10.0

    def check(self, hello: link_pb2.Hello, names: frozenset[str]) -> None:
        """Raises ProtocolError unless the sender of this Hello may open its lane.

        Args:
            names: what the certificate of the sender is for.
        """
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"protocol version {hello.version} came, {PROTOCOL_VERSION} is expected; "
                f"every node needs the same version of ravnest"
            )
        if hello.plan_sha256 != self.plan_sha256:
            raise ProtocolError(
                f"plan {hello.plan_sha256[:64]!r} came, {self.plan_sha256!r} is expected; "
                f"every node needs files of the same clusterize run"
            )
        if hello.receiver != self.node_id:
            raise ProtocolError(
                f"a stream for node {hello.receiver} came, but node {self.node_id} listens here"
            )
        if hello.sender not in self.links:
            raise ProtocolError(
                f"node {hello.sender} came, expected are nodes {sorted(self.links)}"
            )
        if self.is_secured and name_of(hello.sender) not in names:
            raise ProtocolError(
                f"node {hello.sender} came with a certificate for {_listed(sorted(names))}, "
                f"expected one for {name_of(hello.sender)}"
            )
        if len(hello.lane) > MAX_LANE_CHARS:
            raise ProtocolError(
                f"a lane's name has {len(hello.lane)} characters, at most {MAX_LANE_CHARS} may be"
            )
        if not hello.connection:
            raise ProtocolError("connection 0 came, expected 1 or more")
        self._check_formats(hello)
        if (state := self.peers.state(hello.sender)).is_final:
            raise ProtocolError(f"node {hello.sender} {_PAST[state]} before; it cannot come again")
        if self.is_another(hello):
            raise ProtocolError(
                f"node {hello.sender} goes on with a process that was here before; this one of "
                f"node {self.node_id} was started later"
            )
        self.links[hello.sender].recognise(hello.incarnation)

    def is_another(self, hello: link_pb2.Hello) -> bool:
        """Whether it is meant for a process of this node that was here before."""
        return hello.expected not in (b"", self.incarnation)

    def has_parted(self, hello: link_pb2.Hello) -> bool:
        """Whether this is a peer that said farewell and has not heard that it was understood."""
        link = self.links.get(hello.sender)
        is_parted = self.peers.state(hello.sender) in (PeerState.LEFT, PeerState.FAILED)
        return link is not None and is_parted and link.incarnation == hello.incarnation

    def _check_formats(self, hello: link_pb2.Hello) -> None:
        if max(len(hello.understood), len(hello.used)) > MAX_FORMATS:
            raise ProtocolError(
                f"formats are named {len(hello.understood)} and {len(hello.used)} times, "
                f"at most {MAX_FORMATS} may be"
            )
        ours, node_id = self.formats, self.node_id
        used = ours.used.get(hello.sender, frozenset())
        for writer, written, reader, understood in (
            (node_id, used, hello.sender, hello.understood),
            (hello.sender, hello.used, node_id, ours.understood),
        ):
            if unknown := sorted(set(written).difference(understood)):
                raise ProtocolError(
                    f"node {writer} would send {_listed(unknown)} to node {reader}, which only "
                    f"understands {_listed(sorted(understood))}; every node needs the same "
                    f"version of ravnest, or a compression that both know"
                )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name[:32] for name in names) or "nothing"
