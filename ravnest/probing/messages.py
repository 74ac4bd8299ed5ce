"""What a probe and a listener say to each other: fixed-size messages, checked to the byte.

A probe is one stream. BEGIN is answered by READY or REFUSED; then the probe chooses, as often as
the listener's caps allow: PING, answered by PONG; DOWNLOAD, answered by DATA until END, each DATA
acknowledged by ACK; UPLOAD, the same the other way round.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ravnest.errors import ProtocolError

VERSION = 1
SERVICE = "ravnest.probing.Probe"
METHOD = "Run"
MAX_DATA_BYTES = 1 << 20
MAX_MESSAGE_BYTES = MAX_DATA_BYTES + 1

_MAGIC = b"ravnest-probe"
_MAX_REASON_BYTES = 512
_MAX_U32 = (1 << 32) - 1


class Kind(IntEnum):
    """First byte of a message."""

    BEGIN = 1
    READY = 2
    REFUSED = 3
    PING = 4
    PONG = 5
    DOWNLOAD = 6
    UPLOAD = 7
    DATA = 8
    ACK = 9
    END = 10


# Magic and version; sequence number; duration in
# milliseconds and round trip in microseconds; bytes and nanoseconds.
_FORMATS = {
    Kind.BEGIN: struct.Struct(f"!B{len(_MAGIC)}sH"),
    Kind.READY: struct.Struct(f"!B{len(_MAGIC)}sH"),
    Kind.PING: struct.Struct("!BQ"),
    Kind.PONG: struct.Struct("!BQ"),
    Kind.DOWNLOAD: struct.Struct("!BII"),
    Kind.UPLOAD: struct.Struct("!BII"),
    Kind.ACK: struct.Struct("!BQQ"),
    Kind.END: struct.Struct("!B"),
}


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something of a transfer has come in.

    Attributes:
        num_bytes: bytes received so far.
        elapsed_s: since the first message came in, by the receiver's clock.
    """

    num_bytes: int
    elapsed_s: float


def begin(version: int = VERSION) -> bytes:
    """Opens a probe."""
    return _FORMATS[Kind.BEGIN].pack(Kind.BEGIN, _MAGIC, version)


def ready() -> bytes:
    """Accepts a probe."""
    return _FORMATS[Kind.READY].pack(Kind.READY, _MAGIC, VERSION)


def refused(reason: str) -> bytes:
    """Ends a probe and says why."""
    return bytes([Kind.REFUSED]) + reason.encode()[:_MAX_REASON_BYTES]


def ping(sequence: int) -> bytes:
    """Asks for an answer."""
    return _FORMATS[Kind.PING].pack(Kind.PING, sequence)


def pong(raw_ping: bytes) -> bytes:
    """Answers a ping."""
    (sequence,) = fields(raw_ping, Kind.PING)
    return _FORMATS[Kind.PONG].pack(Kind.PONG, sequence)


def transfer(kind: Kind, seconds: float, round_trip_s: float) -> bytes:
    """Asks for a DOWNLOAD or announces an UPLOAD of so many seconds over such a link."""
    return _FORMATS[kind].pack(kind, round(seconds * 1e3), min(round(round_trip_s * 1e6), _MAX_U32))


def data(payload: bytes) -> bytes:
    """Bytes to be counted."""
    return bytes([Kind.DATA]) + payload


def ack(arrival: Arrival) -> bytes:
    """Says what has come in."""
    return _FORMATS[Kind.ACK].pack(Kind.ACK, arrival.num_bytes, round(arrival.elapsed_s * 1e9))


def end() -> bytes:
    """Ends a transfer."""
    return _FORMATS[Kind.END].pack(Kind.END)


def parse_ack(raw: bytes) -> Arrival:
    """The content of an ACK."""
    num_bytes, elapsed_ns = fields(raw, Kind.ACK)
    return Arrival(num_bytes, elapsed_ns * 1e-9)


def parse_refused(raw: bytes) -> str:
    """The reason in a REFUSED, safe to show."""
    text = raw[1 : _MAX_REASON_BYTES + 1].decode(errors="replace")
    return "".join(char if char.isprintable() else "?" for char in text)


def kind_of(raw: bytes) -> Kind:
    """What a message is; ProtocolError when it is none."""
    try:
        kind = Kind(raw[0])
    except (IndexError, ValueError):
        raise ProtocolError(f"{len(raw)} bytes came that are no message of a probe") from None
    if kind in _FORMATS and len(raw) != _FORMATS[kind].size:
        raise ProtocolError(
            f"a {kind.name} of {len(raw)} bytes came; expected {_FORMATS[kind].size}"
        )
    return kind


def fields(raw: bytes, expected: Kind) -> tuple[Any, ...]:
    """The content of a message of an expected kind; ProtocolError when it is of another."""
    kind = kind_of(raw)
    if kind is not expected:
        raise ProtocolError(f"a {kind.name} came; expected {expected.name}")
    return _FORMATS[kind].unpack(raw)[1:]


def check_version(raw: bytes, expected: Kind) -> None:
    """Raises ProtocolError unless BEGIN or READY is of this version."""
    magic, version = fields(raw, expected)
    if magic != _MAGIC:
        raise ProtocolError("what came is no probe of ravnest")
    if version != VERSION:
        raise ProtocolError(
            f"version {version} of the probe came, {VERSION} is expected; "
            "both ends need the same version of ravnest"
        )
