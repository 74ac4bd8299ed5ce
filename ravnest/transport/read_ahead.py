"""Reads small messages of a socket in one piece each, large ones straight into their buffer."""

from __future__ import annotations

import socket
import ssl

_BUFFER_BYTES = 16 << 10  # that of a TLS record


class ReadAhead:
    """The receiving side of a blocking socket, plain or TLS; nobody else reads it.

    What comes with less than was asked for waits for the next call. So a small message takes one
    call to the kernel, and a large one one copy, but for the little that had come before.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._connected = connected
        self._tls = connected if isinstance(connected, ssl.SSLSocket) else None
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0  # of what waits

    @property
    def has_more(self) -> bool:
        """Whether something waits."""
        return self._start < self._end

    def fill(self, target: memoryview) -> int:
        """Fills a flat buffer; returns its size, or fewer bytes when the connection ended before.

        Raises:
            OSError: it broke or was cut.
        """
        filled = self._take(target)
        while filled < (size := len(target)):
            if size - filled >= _BUFFER_BYTES:
                count = self._read_large(target[filled:])
            else:
                self._start, self._end = 0, self._read(self._buffer)
                count = self._take(target[filled:])
            if not count:
                break
            filled += count
        return filled

    def _take(self, target: memoryview) -> int:
        """Moves what waits."""
        start, end = self._start, self._start + len(target)
        if end <= self._end:  # all of it
            target[:] = self._buffer[start:end]
        elif start < (end := self._end):
            target[: end - start] = self._buffer[start:end]
        else:
            return 0
        self._start = end
        return end - start

    def _read(self, target: memoryview) -> int:
        """Reads a byte at least, none at the end."""
        return self._connected.recv_into(target)

    def _read_large(self, target: memoryview) -> int:
        """Reads all or most of it, nothing at the end."""
        if self._tls is None:
            return self._connected.recv_into(target, 0, socket.MSG_WAITALL)
        # What `recv_into` calls, record by record, with a tenth less processor time.
        read, filled, size = self._tls.read, 0, len(target)
        while filled < size and (count := int(read(size - filled, target[filled:]))):
            filled += count
        return filled
