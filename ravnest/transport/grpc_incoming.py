"""The receiving end of one stream over gRPC: checks the Hello, then fills the inbox."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ravnest.errors import ProtocolError
from ravnest.transport.envelope import (
    CONTROL_LANE,
    MAX_CHUNK_BYTES,
    PROTOCOL_VERSION,
    check_announcement,
    credit,
    parse_request,
    refusal,
    welcome,
)
from ravnest.transport.grpc_options import grpc
from ravnest.transport.inbox import Inbox
from ravnest.transport.interface import Message, TransportSettings
from ravnest.transport.limits import MAX_LANE_CHARS
from ravnest.transport.payload import BufferPool
from ravnest.transport.pb import link_pb2
from ravnest.transport.peers import PeerState, PeerTable

_PAST = {PeerState.LEFT: "left", PeerState.FAILED: "failed", PeerState.LOST: "was lost"}

# Stands in the queue of responses for all credits not yet sent, so that many become one.
_CREDITS = b""


@dataclass(frozen=True, slots=True)
class Reception:
    """What every incoming stream of a node needs.

    Attributes:
        refused: told where every refused stream came from, and the reason.
        arrived: told which peer has opened a stream.
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
    hello_timeout_s: float = 10.0


class IncomingLane:
    """One stream from a peer, or from a stranger until its Hello is accepted."""

    def __init__(self, reception: Reception, requests: Iterator[bytes], source: str) -> None:
        self._reception = reception
        self._requests = requests
        self._source = source
        self._responses: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._credits = 0
        self._credits_lock = threading.Lock()
        self._hello: link_pb2.Hello | None = None
        self.reader = threading.Thread(
            target=self._read, name=f"ravnest-from-{source}", daemon=True
        )

    def responses(self) -> Iterator[bytes]:
        """What gRPC's thread sends back: Welcome and credits, or a refusal."""
        self.reader.start()
        try:
            item = self._responses.get(timeout=self._reception.hello_timeout_s)
        except queue.Empty:
            reason = f"no Hello came within {self._reception.hello_timeout_s:g} s"
            self._reception.refused(self._source, reason)
            item = refusal(reason)
            self._responses.put(None)
        while item is not None:
            yield item
            item = self._next_response()

    def _next_response(self) -> bytes | None:
        while (item := self._responses.get()) is _CREDITS:
            with self._credits_lock:
                num_credits, self._credits = self._credits, 0
            if num_credits:
                return credit(num_credits)
        return item

    def _give_credit(self) -> None:
        with self._credits_lock:
            self._credits += 1
        self._responses.put(_CREDITS)

    def _read(self) -> None:
        """Body of the reader thread; every way out ends the responses."""
        try:
            self._converse()
        except ProtocolError as error:
            self._reception.refused(self._source, error.message)
            self._responses.put(refusal(error.message))
            if self._hello is not None:
                self._reception.peers.broke_protocol(self._hello.sender, error.message)
        except (grpc.RpcError, StopIteration):
            # A lost connection shows as either, depending on what gRPC notices first.
            if self._hello is not None:
                cause = f"its stream on lane {self._hello.lane!r} broke"
                self._reception.peers.lost(self._hello.sender, cause)
        finally:
            if self._hello is not None:
                self._reception.inbox.close_lane(self._hello.sender, self._hello.lane)
            self._responses.put(None)

    def _converse(self) -> None:
        sender, lane = self._admit(parse_request(next(self._requests)))
        while True:
            request = parse_request(next(self._requests))
            match request.WhichOneof("body"):
                case "announcement" if lane != CONTROL_LANE:
                    message = self._take_message(request.announcement)
                    self._reception.inbox.deliver(sender, lane, message)
                case "farewell":
                    if lane == CONTROL_LANE:
                        self._part(sender, request.farewell)
                    return
                case other:
                    raise ProtocolError(f"an unexpected {other} came on lane {lane!r}")

    def _admit(self, request: link_pb2.ToReceiver) -> tuple[int, str]:
        if request.WhichOneof("body") != "hello":
            raise ProtocolError(f"a stream began with {request.WhichOneof('body')}, not with hello")
        hello = request.hello
        self._check_hello(hello)
        reception = self._reception
        window = reception.settings.window
        reception.inbox.open_lane(hello.sender, hello.lane, self._give_credit, window)
        self._hello = hello
        reception.peers.connected(hello.sender)
        reception.arrived(hello.sender)
        self._responses.put(welcome(window))
        return hello.sender, hello.lane

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
        if (state := ours.peers.state(hello.sender)).is_final:
            raise ProtocolError(f"node {hello.sender} {_PAST[state]} before; it cannot come again")

    def _take_message(self, announcement: link_pb2.Announcement) -> Message:
        check_announcement(announcement, self._reception.settings.max_payload_bytes)
        num_bytes = announcement.num_bytes
        try:
            payload = self._reception.pool.take(num_bytes)
        except (MemoryError, OverflowError, OSError) as error:
            raise ProtocolError(f"no memory for the {num_bytes} bytes announced") from error
        if announcement.inline:
            payload[:] = announcement.inline
            return Message(announcement.header, (payload,))
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
        return Message(announcement.header, (payload,))

    def _part(self, sender: int, farewell: link_pb2.Farewell) -> None:
        if farewell.HasField("failure"):
            self._reception.peers.failed(sender, farewell.failure)
        else:
            self._reception.peers.left(sender)
