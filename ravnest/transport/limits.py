"""What a message may be at most on any transport; a sender hears of it before a receiver does."""

from __future__ import annotations

from ravnest.errors import TransportError
from ravnest.transport.interface import Message

MAX_LANE_CHARS = 128
MAX_FORMATS = 64
MAX_HEADER_BYTES = 32 << 20
# Per peer and direction, the control lane included.
MAX_LANES = 64


def check_lane(lane: str) -> None:
    """Raises TransportError unless the lane's name has a sensible length."""
    if not 0 < len(lane) <= MAX_LANE_CHARS:
        raise TransportError(
            f"lane {lane!r} has {len(lane)} characters, expected 1 to {MAX_LANE_CHARS}"
        )


def check_header(message: Message) -> None:
    """Raises TransportError when the header is larger than any peer accepts."""
    if (size := len(message.header)) > MAX_HEADER_BYTES:
        raise TransportError(f"a header has {size} bytes, at most {MAX_HEADER_BYTES} are allowed")
