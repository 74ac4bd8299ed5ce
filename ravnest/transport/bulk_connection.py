"""A plain connection beside gRPC that carries the large payloads of one lane. Knows sockets alone."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass

from ravnest.transport.interface import Buffer
from ravnest.transport.payload import flat_views

TICKET_BYTES = 32
ADMITTED = b"\1"

# A smaller payload is sooner there with its header, as one message of gRPC's.
MIN_BULK_BYTES = 512 << 10


@dataclass(frozen=True, slots=True)
class BulkOffer:
    """Where a lane's payloads may be brought to.

    Attributes:
        port: of the host that the receiver is reached at.
        ticket: says which lane a connection is for; good once.
    """

    port: int
    ticket: bytes


class BulkConnection:
    """One direction of a connected socket; any thread may `cut` it.

    gRPC takes two copies and a handful of thread switches on either side for each chunk. Here the
    kernel reads from the sender's tensor and writes into the receiver's.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        # TLS comes in records; a plain socket can be told to return when all has come.
        self._flags = 0 if isinstance(connected, ssl.SSLSocket) else socket.MSG_WAITALL

    def send(self, payload: Sequence[Buffer]) -> None:
        """Sends buffers one after the other; OSError when the connection breaks or is cut."""
        for view in flat_views(payload):
            if view.nbytes:
                self._socket.sendall(view)

    def receive_into(self, buffer: memoryview) -> None:
        """Fills the buffer; OSError when the connection breaks or is cut before."""
        filled = 0
        while filled < buffer.nbytes:
            if not (got := self._socket.recv_into(buffer[filled:], 0, self._flags)):
                raise ConnectionError(f"it ended {buffer.nbytes - filled} bytes early")
            filled += got

    def cut(self) -> None:
        """Ends what other threads send or receive, now and from now on."""
        with contextlib.suppress(OSError):  # the peer has cut it already
            # Of a TLS socket this is the method of the socket below: nothing is written.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket; nobody may be using it."""
        self._socket.close()
