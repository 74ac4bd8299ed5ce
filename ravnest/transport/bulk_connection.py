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
from ravnest.transport.pacing import Pacing
from ravnest.transport.payload import flat_views
from ravnest.transport.read_ahead import ReadAhead

TICKET_BYTES = 32
ADMITTED = b"\1"

# Joining takes less than another call.
_MAX_JOINED_BYTES = 32 << 10
# Header included. To copy so much takes less than to wake another thread where processors are busy;
# more is better copied beside what the sender does next.
_MAX_PROMPT_BYTES = 256 << 10
# That one call takes; Linux takes 1,024.
_MAX_PIECES = 64
# Over TLS so small that Linux takes it whole when it says that it takes something: it does when a
# third of its buffer is free, and that has 46 KB from the start. Others promise less room.
_MAX_PROMPT_TLS_BYTES = 8 << 10

# Not all of them everywhere. gRPC's pings say nothing of this connection: an address translation
# forgets one that is idle, and what is sent then is lost without an answer.
_WATCHED = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}

_HEAD = struct.Struct(">QIQH")
# Not everywhere; it has the head of a message travel in one packet with what follows.
_MORE = getattr(socket, "MSG_MORE", 0)
# Not everywhere; where it is not, nothing seems to be there, and nothing is sent at once.
_NO_WAIT: int = getattr(socket, "MSG_DONTWAIT", 0)


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
        note_bytes: of the note it takes along, which comes first.
    """

    position: int
    header_bytes: int
    num_bytes: int
    note_bytes: int = 0


class BulkConnection:
    """One direction of a connected socket; any thread may `cut` it.

    gRPC makes two copies and a handful of thread switches on either side of each chunk. Here the
    kernel reads from the sender's tensor and writes into the receiver's.

    Args:
        rate_bps: bits per second that the link can do, where this is who sends and it is known.
        take_note: a Credit as on the control lane, for the next message to take along, or nothing.
    """

    def __init__(
        self,
        connected: socket.socket,
        rate_bps: float | None = None,
        take_note: Callable[[], bytes] = bytes,
    ) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _WATCHED.items():
            if (option := getattr(socket, name, None)) is not None:
                connected.setsockopt(socket.IPPROTO_TCP, option, value)
        self._socket = connected
        self._incoming = ReadAhead(connected)
        self._pacing = Pacing(connected, None if rate_bps is None else rate_bps / 8)
        self._head = memoryview(bytearray(_HEAD.size))
        self._is_writable = _poll_of(connected)
        self._is_tls = isinstance(connected, ssl.SSLSocket)
        # TLS comes in records.
        self._more = 0 if self._is_tls else _MORE
        self._take_note = take_note
        self._rest: list[memoryview] = []  # of the next message, of which some was sent at once

    def send_now(self, position: int, message: Message) -> bool:
        """Sends what the kernel takes without waiting; whether that is all.

        Where it is not, `send` is to be called next, with the same message; it sends the rest.

        Raises:
            OSError: as `send`.
        """
        num_bytes = len(message.header) + message.num_bytes
        if self._is_tls:
            if num_bytes > _MAX_PROMPT_TLS_BYTES or not self._is_writable(0):
                return False
            self._socket.sendall(b"".join(self._pieces(position, message)))
            return True
        if num_bytes > _MAX_PROMPT_BYTES or not _NO_WAIT:
            return False
        pieces = self._pieces(position, message)
        if num_bytes <= _MAX_JOINED_BYTES or len(pieces) > _MAX_PIECES:
            pieces = [memoryview(b"".join(pieces))]
        try:
            num_sent = self._socket.sendmsg(pieces, (), _NO_WAIT)
        except BlockingIOError:
            num_sent = 0
        self._rest = _after(num_sent, pieces)
        return not self._rest

    def send(self, position: int, message: Message) -> None:
        """Sends a message; OSError when the connection breaks or is cut."""
        pieces, self._rest = self._rest or self._pieces(position, message), []
        if message.num_bytes <= _MAX_JOINED_BYTES:  # one packet, or few
            self._socket.sendall(b"".join(pieces))
            return
        for piece in pieces[:-1]:
            for part in self._pacing.slices(piece):
                self._socket.sendall(part, self._more)
        for part in self._pacing.slices(pieces[-1]):
            self._socket.sendall(part)

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
        if not _NO_WAIT:
            return False
        try:
            # Also of a TLS socket the method of the plain one: it is not to be decrypted.
            return bool(socket.socket.recv(self._socket, 1, socket.MSG_PEEK | _NO_WAIT))
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

    def _pieces(self, position: int, message: Message) -> list[memoryview]:
        """A message on the wire: head, note and header, and what there is of its payload."""
        note = self._take_note()
        head = _HEAD.pack(position, len(message.header), message.num_bytes, len(note))
        payload = (view for view in flat_views(message.payload) if view.nbytes)
        return [memoryview(b"".join((head, note, message.header))), *payload]


def _after(num_bytes: int, pieces: list[memoryview]) -> list[memoryview]:
    """The pieces, none of them empty, without so many bytes of the first."""
    first = 0
    while first < len(pieces) and num_bytes >= pieces[first].nbytes:
        num_bytes -= pieces[first].nbytes
        first += 1
    rest = pieces[first:]
    if num_bytes:
        rest[0] = rest[0][num_bytes:]
    return rest


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
