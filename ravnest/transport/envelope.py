"""What travels on a gRPC stream, built and strictly parsed; knows no sockets and no threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ravnest.errors import ProtocolError
from ravnest.transport.backlog import Progress
from ravnest.transport.bulk_connection import TICKET_BYTES, BulkOffer
from ravnest.transport.interface import Buffer, Formats, Message
from ravnest.transport.limits import MAX_HEADER_BYTES
from ravnest.transport.payload import flat_views
from ravnest.transport.pb import link_pb2

PROTOCOL_VERSION = 5
CONTROL_LANE = ""

MAX_CHUNK_BYTES = 2 << 20
# Header and payload up to this size go as one gRPC message.
MAX_WHOLE_BYTES = MAX_CHUNK_BYTES
# No protobuf message begins with it: a field's number is never 0.
_WHOLE = b"\0"
_PREFIX_BYTES = 5
# One gRPC message at most: an announcement with the largest header.
MAX_GRPC_BYTES = MAX_HEADER_BYTES + (1 << 20)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who opens streams, and on which connection.

    Attributes:
        incarnation: of the sending process.
        expected: of the receiving process; empty: not known yet.
        connection: number of the connection from this node to that peer.
    """

    incarnation: bytes
    expected: bytes
    connection: int


def hello(
    plan_sha256: str,
    sender: int,
    receiver: int,
    lane: str,
    formats: Formats | None,
    caller: Caller,
) -> bytes:
    """The first request of a stream."""
    body = link_pb2.Hello(
        version=PROTOCOL_VERSION,
        plan_sha256=plan_sha256,
        sender=sender,
        receiver=receiver,
        lane=lane,
        understood=sorted(formats.understood) if formats else (),
        used=sorted(formats.used.get(receiver, ())) if formats else (),
        incarnation=caller.incarnation,
        expected=caller.expected,
        connection=caller.connection,
    )
    return link_pb2.ToReceiver(hello=body).SerializeToString()


def farewell(failure: str | None, num_messages: int = 0) -> bytes:
    """The last request of a stream, after so many messages of the lane; None is a goodbye."""
    body = link_pb2.Farewell(failure=failure, num_messages=num_messages)
    return link_pb2.ToReceiver(farewell=body).SerializeToString()


def welcome(
    lane: str,
    window: int,
    connection: int,
    progress: Progress,
    bulk: BulkOffer | None = None,
) -> bytes:
    """Tells the sender of an accepted lane how many messages it may have unconsumed.

    Args:
        connection: that the lane was opened on.
        progress: the sender goes on with the message of number `num_received`.
        bulk: where it may bring messages.
    """
    body = link_pb2.Welcome(
        lane=lane,
        window=window,
        connection=connection,
        num_received=progress.num_received,
        num_consumed=progress.num_consumed,
    )
    if bulk is not None:
        body.bulk.port, body.bulk.ticket = bulk.port, bulk.ticket
    return link_pb2.ToReceiver(welcome=body).SerializeToString()


def credit(lane: str, progress: Progress) -> bytes:
    """Tells the sender of a lane that messages were received or consumed."""
    body = link_pb2.Credit(
        lane=lane, num_received=progress.num_received, num_consumed=progress.num_consumed
    )
    return link_pb2.ToReceiver(credit=body).SerializeToString()


def progress_of(body: link_pb2.Welcome | link_pb2.Credit) -> Progress:
    """How far a receiver says it is; ProtocolError when that cannot be."""
    progress = Progress(body.num_received, body.num_consumed)
    if progress.num_consumed > progress.num_received:
        raise ProtocolError(
            f"{progress.num_consumed} messages of lane {body.lane!r} are said to be consumed, "
            f"of {progress.num_received} received"
        )
    return progress


def received() -> bytes:
    """The response to a stream that has ended as it should."""
    return link_pb2.ToSender(received=link_pb2.Received()).SerializeToString()


def refusal(reason: str, *, is_another: bool = False) -> bytes:
    """The response to a stream that is not accepted, or no longer.

    Args:
        is_another: because this is not the process that was expected.
    """
    body = link_pb2.Refusal(reason=reason, is_another=is_another)
    return link_pb2.ToSender(refusal=body).SerializeToString()


def refusal_of(lane: str, reason: str) -> bytes:
    """Tells the sender of a lane that what came on its bulk connection is not accepted."""
    return link_pb2.ToReceiver(
        refusal=link_pb2.Refusal(lane=lane, reason=reason)
    ).SerializeToString()


def offer_of(body: link_pb2.Welcome) -> BulkOffer | None:
    """Where messages may be brought to; ProtocolError when it cannot be that."""
    if not body.HasField("bulk"):
        return None
    port, ticket = body.bulk.port, body.bulk.ticket
    if not 0 < port < 1 << 16 or len(ticket) != TICKET_BYTES:
        raise ProtocolError(
            f"port {port} is offered for messages with a ticket of {len(ticket)} bytes; "
            f"expected 1 to 65535 and {TICKET_BYTES} bytes"
        )
    return BulkOffer(port, ticket)


def requests_of(message: Message) -> Iterator[bytes]:
    """A small message whole; of a large one an announcement, and the chunks of its payload."""
    header, num_bytes = message.header, message.num_bytes
    if len(header) + num_bytes <= MAX_WHOLE_BYTES:
        prefix = _WHOLE + len(header).to_bytes(_PREFIX_BYTES - 1)
        yield b"".join((prefix, header, *flat_views(message.payload)))
        return
    body = link_pb2.Announcement(header=header, num_bytes=num_bytes)
    yield link_pb2.ToReceiver(announcement=body).SerializeToString()
    yield from _chunks(message.payload)


def whole_of(raw: bytes) -> tuple[bytes, memoryview] | None:
    """Header and payload of a whole message, None when it is another request.

    Raises:
        ProtocolError: it is cut short, or larger than whole messages may be.
    """
    if not raw.startswith(_WHOLE):
        return None
    start = _PREFIX_BYTES + int.from_bytes(raw[1:_PREFIX_BYTES])
    if not start <= len(raw) <= _PREFIX_BYTES + MAX_WHOLE_BYTES:
        raise ProtocolError(
            f"a whole message of {len(raw)} bytes came whose payload begins at {start}; "
            f"at most {MAX_WHOLE_BYTES} bytes of header and payload are allowed"
        )
    return raw[_PREFIX_BYTES:start], memoryview(raw)[start:]


def _chunks(payload: Sequence[Buffer]) -> Iterator[bytes]:
    """The payload in chunks of equal size, whatever the sizes of its buffers."""
    pieces: list[memoryview] = []
    room = MAX_CHUNK_BYTES
    for view in flat_views(payload):
        start = 0
        while start < view.nbytes:
            piece = view[start : start + room]
            pieces.append(piece)
            start += piece.nbytes
            room -= piece.nbytes
            if room == 0:
                yield b"".join(pieces)
                pieces, room = [], MAX_CHUNK_BYTES
    if pieces:
        yield b"".join(pieces)


def parse_request(raw: bytes) -> link_pb2.ToReceiver:
    """A request that is not a chunk; ProtocolError when it is malformed or empty."""
    request = link_pb2.ToReceiver()
    _parse(raw, request)
    return request


def parse_response(raw: bytes) -> link_pb2.ToSender:
    """A response; ProtocolError when it is malformed or empty."""
    response = link_pb2.ToSender()
    _parse(raw, response)
    return response


def check_payload(num_bytes: int, max_payload_bytes: int) -> None:
    """Raises ProtocolError when a payload of that size breaks the limit."""
    if num_bytes > max_payload_bytes:
        raise ProtocolError(
            f"a payload of {num_bytes} bytes is announced, at most {max_payload_bytes} are allowed"
        )


def check_sizes(header_bytes: int, num_bytes: int, max_payload_bytes: int) -> None:
    """Raises ProtocolError when an announced header or payload breaks a limit."""
    check_payload(num_bytes, max_payload_bytes)
    if header_bytes > MAX_HEADER_BYTES:
        raise ProtocolError(
            f"a header has {header_bytes} bytes, at most {MAX_HEADER_BYTES} are allowed"
        )


def _parse(raw: bytes, into: link_pb2.ToReceiver | link_pb2.ToSender) -> None:
    try:
        into.ParseFromString(raw)
    except DecodeError as error:
        raise ProtocolError(f"{len(raw)} bytes are no {type(into).__name__}: {error}") from error
    if into.WhichOneof("body") is None:
        raise ProtocolError(f"a {type(into).__name__} of {len(raw)} bytes has no known body")
