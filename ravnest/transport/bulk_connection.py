"""A plain connection beside gRPC's that carries the messages of one lane."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from dataclasses import dataclass

from ravnest.transport.interface import Message
from ravnest.transport.payload import flat_views

TICKET_BYTES = 32
ADMITTED = b"\1"

# Joining takes less than another call.
_MAX_JOINED_BYTES = 32 << 10

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


@dataclass(frozen=True, slots=True)
class BulkHead:
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
        # TLS comes in records; a plain socket can be told to return when all has come.
        is_plain = not isinstance(connected, ssl.SSLSocket)
        self._more: int = _MORE if is_plain else 0
        self._all: int = socket.MSG_WAITALL if is_plain else 0

    def send(self, position: int, message: Message) -> None:
        """Sends a message; OSError when the connection breaks or is cut."""
        head = _HEAD.pack(position, len(message.header), message.num_bytes)
        if message.num_bytes <= _MAX_JOINED_BYTES:  # one packet, or few
            self._socket.sendall(b"".join((head, message.header, *flat_views(message.payload))))
            return
        self._socket.sendall(head + message.header, self._more)
        for view in flat_views(message.payload):
            if view.nbytes:
                self._socket.sendall(view)

    def receive_head(self) -> BulkHead | None:
        """The head of the next message, None when there is none; raises as `receive_into`."""
        raw = bytearray(_HEAD.size)
        if not (got := self._socket.recv_into(raw, 0, self._all)):
            return None
        self.receive_into(memoryview(raw)[got:])
        return BulkHead(*_HEAD.unpack(raw))

    def receive_into(self, buffer: memoryview) -> None:
        """Fills the buffer; OSError when the connection breaks, is cut or ends before."""
        filled = 0
        while filled < buffer.nbytes:
            if not (got := self._socket.recv_into(buffer[filled:], 0, self._all)):
                raise ConnectionError(f"it ended {buffer.nbytes - filled} bytes early")
            filled += got

    def has_more(self) -> bool:
        """Whether there is something to receive; false where that cannot be told."""
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
