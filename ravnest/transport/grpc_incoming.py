"""The receiving end of one stream over gRPC: checks the Hello, then fills the inbox."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ravnest.errors import ProtocolError
from ravnest.transport.bulk_listener import BulkListener
from ravnest.transport.bulk_slot import BulkSlot
from ravnest.transport.envelope import (
    CONTROL_LANE,
    MAX_CHUNK_BYTES,
    PROTOCOL_VERSION,
    check_announcement,
    check_payload,
    credit,
    parse_request,
    received,
    refusal,
    welcome,
    whole_of,
)
from ravnest.transport.grpc_options import grpc
from ravnest.transport.inbox import Inbox
from ravnest.transport.interface import Formats, Message, TransportSettings
from ravnest.transport.limits import MAX_FORMATS, MAX_LANE_CHARS
from ravnest.transport.payload import BufferPool
from ravnest.transport.pb import link_pb2
from ravnest.transport.peers import PeerState, PeerTable
from ravnest.transport.window import ReceiveWindow

_PAST = {PeerState.LEFT: "left", PeerState.FAILED: "failed", PeerState.LOST: "was lost"}


@dataclass(frozen=True, slots=True)
class Reception:
    """What every incoming stream of a node needs.

    Attributes:
        refused: told where every refused stream came from, and the reason.
        arrived: told which peer has opened a stream.
        reply: sends a request to a peer on the control lane to it.
        answered: told the Welcome or Credit that a peer gives to a lane of this node.
        formats: a peer that does not understand what it will be sent is refused.
        bulk: where peers may bring large payloads, None when they have to come over gRPC.
        hello_timeout_s: a stream that says nothing for so long is cut.
    """

    node_id: int
    plan_sha256: str
    expected: frozenset[int]
    settings: TransportSettings
    peers: PeerTable
    inbox: Inbox
    pool: BufferPool
    refused: Callable[[str, str], None]
    arrived: Callable[[int], None]
    reply: Callable[[int, bytes], None]
    answered: Callable[[int, link_pb2.ToReceiver], None]
    formats: Formats = field(default_factory=Formats)
    bulk: BulkListener | None = None
    hello_timeout_s: float = 10.0


class IncomingLane:
    """One stream from a peer, or from a stranger until its Hello is accepted.

    All of it is read in the thread that gRPC gives to the stream; `greeter` only lives until the
    Hello, because gRPC's iterator cannot be waited for with a limit.
    """

    def __init__(self, reception: Reception, requests: Iterator[bytes], source: str) -> None:
        self._reception = reception
        self._requests = requests
        self._source = source
        self._first: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._hello: link_pb2.Hello | None = None
        self._bulk: BulkSlot | None = None
        self.greeter = threading.Thread(
            target=self._await_hello, name=f"ravnest-greeter-{source}", daemon=True
        )

    def serve(self) -> bytes:
        """Takes in everything until the stream ends; returns the response to it."""
        try:
            self._converse()
        except ProtocolError as error:
            self._reception.refused(self._source, error.message)
            if self._hello is not None:
                self._reception.peers.broke_protocol(self._hello.sender, error.message)
            return refusal(error.message)
        except (grpc.RpcError, StopIteration, OSError):
            # A lost connection shows as any of these, depending on what is noticed first.
            if self._hello is not None:
                cause = f"its stream on lane {self._hello.lane!r} broke"
                self._reception.peers.lost(self._hello.sender, cause)
        finally:
            if self._hello is not None:
                self._reception.inbox.close_lane(self._hello.sender, self._hello.lane)
            if self._bulk is not None and self._reception.bulk is not None:
                self._reception.bulk.withdraw(self._bulk)
        return received()

    def _await_hello(self) -> None:
        try:
            self._first.put(next(self._requests))
        except (grpc.RpcError, StopIteration):
            self._first.put(None)

    def _first_request(self) -> bytes | None:
        self.greeter.start()
        limit_s = self._reception.hello_timeout_s
        try:
            return self._first.get(timeout=limit_s)
        except queue.Empty:
            raise ProtocolError(f"no Hello came within {limit_s:g} s") from None

    def _converse(self) -> None:
        if (first := self._first_request()) is None:
            return
        sender, lane, window = self._admit(first)
        while True:
            raw = next(self._requests)
            if lane != CONTROL_LANE and (whole := whole_of(raw)) is not None:
                self._deliver(sender, lane, window, self._copied(*whole))
                continue
            request = parse_request(raw)
            match request.WhichOneof("body"):
                case "announcement" if lane != CONTROL_LANE:
                    message = self._take_announced(request.announcement)
                    self._deliver(sender, lane, window, message)
                case "welcome" | "credit" if lane == CONTROL_LANE:
                    self._reception.answered(sender, request)
                case "farewell":
                    if lane == CONTROL_LANE:
                        self._part(sender, request.farewell)
                    return
                case other:
                    raise ProtocolError(f"an unexpected {other} came on lane {lane!r}")

    def _deliver(self, sender: int, lane: str, window: ReceiveWindow, message: Message) -> None:
        window.arrived()
        self._reception.inbox.deliver(sender, lane, message)

    def _admit(self, first: bytes) -> tuple[int, str, ReceiveWindow]:
        request = parse_request(first)
        if request.WhichOneof("body") != "hello":
            raise ProtocolError(f"a stream began with {request.WhichOneof('body')}, not with hello")
        hello = request.hello
        self._check_hello(hello)
        reception, sender, lane = self._reception, hello.sender, hello.lane
        size = reception.settings.window

        def give(num_credits: int) -> None:
            reception.reply(sender, credit(lane, num_credits))

        window = ReceiveWindow(size, give)
        reception.inbox.open_lane(sender, lane, window.consumed, size)
        self._hello = hello
        reception.peers.connected(sender)
        reception.arrived(sender)
        if lane != CONTROL_LANE:
            if reception.bulk is not None:
                self._bulk = reception.bulk.offer()
            reception.reply(sender, welcome(lane, size, self._bulk and self._bulk.offer))
        return sender, lane, window

    def _check_hello(self, hello: link_pb2.Hello) -> None:
        ours = self._reception
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError(
                f"protocol version {hello.version} came, {PROTOCOL_VERSION} is expected; "
                f"every node needs the same version of ravnest"
            )
        if hello.plan_sha256 != ours.plan_sha256:
            raise ProtocolError(
                f"plan {hello.plan_sha256[:64]!r} came, {ours.plan_sha256!r} is expected; "
                f"every node needs files of the same clusterize run"
            )
        if hello.receiver != ours.node_id:
            raise ProtocolError(
                f"a stream for node {hello.receiver} came, but node {ours.node_id} listens here"
            )
        if hello.sender not in ours.expected:
            raise ProtocolError(
                f"node {hello.sender} came, expected are nodes {sorted(ours.expected)}"
            )
        if len(hello.lane) > MAX_LANE_CHARS:
            raise ProtocolError(
                f"a lane's name has {len(hello.lane)} characters, at most {MAX_LANE_CHARS} may be"
            )
        self._check_formats(hello)
        if (state := ours.peers.state(hello.sender)).is_final:
            raise ProtocolError(f"node {hello.sender} {_PAST[state]} before; it cannot come again")

    def _check_formats(self, hello: link_pb2.Hello) -> None:
        if max(len(hello.understood), len(hello.used)) > MAX_FORMATS:
            raise ProtocolError(
                f"formats are named {len(hello.understood)} and {len(hello.used)} times, "
                f"at most {MAX_FORMATS} may be"
            )
        ours, node_id = self._reception.formats, self._reception.node_id
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

    def _copied(self, header: bytes, whole: memoryview) -> Message:
        check_payload(whole.nbytes, self._reception.settings.max_payload_bytes)
        payload = self._reception.pool.take(whole.nbytes)
        payload[:] = whole
        return Message(header, (payload,))

    def _take_announced(self, announcement: link_pb2.Announcement) -> Message:
        check_announcement(announcement, self._reception.settings.max_payload_bytes)
        num_bytes = announcement.num_bytes
        try:
            payload = self._reception.pool.take(num_bytes)
        except (MemoryError, OverflowError, OSError) as error:
            raise ProtocolError(f"no memory for the {num_bytes} bytes announced") from error
        if not announcement.is_bulk:
            self._take_chunks(payload)
        elif self._bulk is not None:
            self._bulk.receive_into(payload)
        else:
            raise ProtocolError("a payload is announced on a bulk connection that is not offered")
        return Message(announcement.header, (payload,))

    def _take_chunks(self, payload: memoryview) -> None:
        num_bytes = payload.nbytes
        offset = 0
        while offset < num_bytes:
            chunk = next(self._requests)
            if not 0 < len(chunk) <= min(MAX_CHUNK_BYTES, num_bytes - offset):
                raise ProtocolError(
                    f"a chunk of {len(chunk)} bytes came; at most {MAX_CHUNK_BYTES} are allowed "
                    f"and {num_bytes - offset} were left of the payload"
                )
            payload[offset : offset + len(chunk)] = chunk
            offset += len(chunk)

    def _part(self, sender: int, farewell: link_pb2.Farewell) -> None:
        if farewell.HasField("failure"):
            self._reception.peers.failed(sender, farewell.failure)
        else:
            self._reception.peers.left(sender)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name[:32] for name in names) or "nothing"
