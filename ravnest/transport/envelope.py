"""What travels on a gRPC stream, built and strictly parsed; knows no sockets and no threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google.protobuf.message import DecodeError

from ravnest.errors import ProtocolError
from ravnest.transport.interface import Buffer, Message
from ravnest.transport.limits import MAX_HEADER_BYTES
from ravnest.transport.payload import flat_views
from ravnest.transport.pb import link_pb2

PROTOCOL_VERSION = 1
CONTROL_LANE = ""

MAX_CHUNK_BYTES = 2 << 20
# Below this a message is one gRPC message; above it copying into the envelope costs more.
MAX_INLINE_BYTES = 60 << 10
# One gRPC message at most: an announcement with the largest header and no inline payload.
MAX_GRPC_BYTES = MAX_HEADER_BYTES + (1 << 20)


def hello(plan_sha256: str, sender: int, receiver: int, lane: str) -> bytes:
    """The first request of a stream."""
    body = link_pb2.Hello(
        version=PROTOCOL_VERSION,
        plan_sha256=plan_sha256,
        sender=sender,
        receiver=receiver,
        lane=lane,
    )
    return link_pb2.ToReceiver(hello=body).SerializeToString()


def farewell(failure: str | None) -> bytes:
    """The last request of a stream; None is a goodbye."""
    body = link_pb2.Farewell(failure=failure)
    return link_pb2.ToReceiver(farewell=body).SerializeToString()


def welcome(window: int) -> bytes:
    """The answer to an accepted Hello."""
    return link_pb2.ToSender(welcome=link_pb2.Welcome(window=window)).SerializeToString()


def refusal(reason: str) -> bytes:
    """The last response of a stream that is not accepted, or no longer."""
    return link_pb2.ToSender(refusal=link_pb2.Refusal(reason=reason)).SerializeToString()


def credit(num_messages: int) -> bytes:
    """Tells the sender that messages were consumed."""
    body = link_pb2.Credit(num_messages=num_messages)
    return link_pb2.ToSender(credit=body).SerializeToString()


def requests_of(message: Message) -> Iterator[bytes]:
    """One announcement, and the chunks of a payload that is not inline."""
    num_bytes = message.num_bytes
    body = link_pb2.Announcement(header=message.header, num_bytes=num_bytes)
    if len(message.header) + num_bytes <= MAX_INLINE_BYTES:
        body.inline = b"".join(flat_views(message.payload))
        yield link_pb2.ToReceiver(announcement=body).SerializeToString()
        return
    yield link_pb2.ToReceiver(announcement=body).SerializeToString()
    yield from _chunks(message.payload)


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


def check_announcement(body: link_pb2.Announcement, max_payload_bytes: int) -> None:
    """Raises ProtocolError when the sizes break a limit or contradict each other."""
    if body.num_bytes > max_payload_bytes:
        raise ProtocolError(
            f"a payload of {body.num_bytes} bytes is announced, "
            f"at most {max_payload_bytes} are allowed"
        )
    if len(body.header) > MAX_HEADER_BYTES:
        raise ProtocolError(
            f"a header has {len(body.header)} bytes, at most {MAX_HEADER_BYTES} are allowed"
        )
    if body.inline and len(body.inline) != body.num_bytes:
        raise ProtocolError(
            f"an inline payload has {len(body.inline)} bytes, {body.num_bytes} were announced"
        )


def _parse(raw: bytes, into: link_pb2.ToReceiver | link_pb2.ToSender) -> None:
    try:
        into.ParseFromString(raw)
    except DecodeError as error:
        raise ProtocolError(f"{len(raw)} bytes are no {type(into).__name__}: {error}") from error
    if into.WhichOneof("body") is None:
        raise ProtocolError(f"a {type(into).__name__} of {len(raw)} bytes has no known body")
