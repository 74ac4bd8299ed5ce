"""A plain connection beside gRPC's that carries the messages of one lane."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ravnest.transport.interface import Message
from ravnest.transport.payload import flat_views
from ravnest.transport.read_ahead import ReadAhead

TICKET_BYTES = 32
ADMITTED = b"\1"

# Joining takes less than another call.
_MAX_JOINED_BYTES = 32 << 10
# With its header, so small that Linux takes it whole when it says that it takes something: it does
# when a third of its buffer is free, and that has 46 KB from the start. Others promise less room.
_MAX_PROMPT_BYTES = 8 << 10

# Not all of them everywhere. gRPC's pings say nothing of this connection: an address translation
# forgets one that is idle, and what is sent then is lost without an answer.
_WATCHED = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}

_HEAD = struct.Struct(">QIQ")
# Not everywhere; it has the head of a message travel in one packet with what follows.
_MORE = getattr(socket, "MSG_MORE", 0)
# Not everywhere; where it is not, nothing seems to be there.
_LOOK = socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0)


@dataclass(frozen=True, slots=True)
class BulkOffer:
    """Where a lane's messages may be brought to.

    Attributes:
        port: of the host that the receiver is reached at.
        ticket: says which lane a connection is for; good once.
    """

    port: int
    ticket: bytes


class BulkHead(NamedTuple):
    """What comes before a message's header.

    Attributes:
        position: of the message in the lane, those over gRPC counted.
        header_bytes: of its header, as announced.
        num_bytes: of its payload, as announced.
    """

    position: int
    header_bytes: int
    num_bytes: int


class BulkConnection:
    """One direction of a connected socket; any thread may `cut` it.

    gRPC makes two copies and a handful of thread switches on either side of each chunk. Here the
    kernel reads from the sender's tensor and writes into the receiver's.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _WATCHED.items():
            if (option := getattr(socket, name, None)) is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket = connected
        self._incoming = ReadAhead(connected)
        self._head = memoryview(bytearray(_HEAD.size))
        self._is_writable = _poll_of(connected)
        # TLS comes in records.
        self._more: int = 0 if isinstance(connected, ssl.SSLSocket) else _MORE

    def send_now(self, position: int, message: Message) -> bool:
        """As `send`, if that is sure not to wait; false when it is not."""
        num_bytes = message.num_bytes
        if len(message.header) + num_bytes > _MAX_PROMPT_BYTES or not self._is_writable(0):
            return False
        self._send_joined(position, message, num_bytes)
        return True

    def send(self, position: int, message: Message) -> None:
        """Sends a message; OSError when the connection breaks or is cut."""
        if (num_bytes := message.num_bytes) <= _MAX_JOINED_BYTES:  # one packet, or few
            self._send_joined(position, message, num_bytes)
            return
        head = _HEAD.pack(position, len(message.header), num_bytes)
        self._socket.sendall(head + message.header, self._more)
        for view in flat_views(message.payload):
            if view.nbytes:
                self._socket.sendall(view)

    def _send_joined(self, position: int, message: Message, num_bytes: int) -> None:
        head = _HEAD.pack(position, len(message.header), num_bytes)
        self._socket.sendall(b"".join((head, message.header, *flat_views(message.payload))))

    def receive_head(self) -> BulkHead | None:
        """The head of the next message, None when there is none; raises as `receive_into`."""
        if not (got := self._incoming.fill(self._head)):
            return None
        _check_whole(self._head, got)
        return BulkHead._make(_HEAD.unpack(self._head))

    def receive_into(self, buffer: memoryview) -> None:
        """Fills the buffer; OSError when the connection breaks, is cut or ends before."""
        _check_whole(buffer, self._incoming.fill(buffer))

    def has_more(self) -> bool:
        """Whether there is something to receive; false where that cannot be told."""
        if self._incoming.has_more:
            return True
        if _LOOK == socket.MSG_PEEK:
            return False
        try:
            # Also of a TLS socket the method of the plain one: it is not to be decrypted.
            return bool(socket.socket.recv(self._socket, 1, _LOOK))
        except OSError:
            return False

    def cut(self) -> None:
        """Ends what other threads send or receive, now and from now on."""
        with contextlib.suppress(OSError):  # the peer has cut it already
            # Also of a TLS socket the method of the plain one: nothing is to be written.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket; nobody may be using it."""
        self._socket.close()


def _check_whole(buffer: memoryview, filled: int) -> None:
    if filled < buffer.nbytes:
        raise ConnectionError(f"it ended {buffer.nbytes - filled} bytes early")


def _poll_of(connected: socket.socket) -> Callable[[int], object]:
    """Asks Linux whether it has room, waiting for so many milliseconds; false elsewhere."""
    if not sys.platform.startswith("linux"):
        return lambda _: False
    poll = select.poll()
    poll.register(connected, select.POLLOUT)
    return poll.poll
