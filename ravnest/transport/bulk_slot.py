"""What one lane was offered, and its bulk connection once that is there."""

from __future__ import annotations

import threading

from ravnest.transport.bulk_connection import BulkConnection, BulkOffer

ARRIVAL_S = 10.0


class BulkSlot:
    """Between the thread that admits a connection and the one that receives from it."""

    def __init__(self, offer: BulkOffer) -> None:
        self.offer = offer
        self._connection: BulkConnection | None = None
        self._is_cut = False
        self._change = threading.Condition()

    def put(self, connection: BulkConnection) -> bool:
        """The connection has come; false when it is the second, or comes too late."""
        with self._change:
            if self._connection is not None or self._is_cut:
                return False
            self._connection = connection
            self._change.notify_all()
            return True

    def receive_into(self, buffer: memoryview) -> None:
        """Fills the buffer with the next payload.

        Raises:
            OSError: the connection broke, was cut, or is not there although something is announced.
        """
        with self._change:
            self._change.wait_for(lambda: self._connection is not None or self._is_cut, ARRIVAL_S)
            connection = self._connection
        if connection is None:
            raise ConnectionError("a payload is announced on one that never came")
        connection.receive_into(buffer)

    def cut(self) -> None:
        """Ends what is received, now and from now on."""
        with self._change:
            self._is_cut = True
            if self._connection is not None:
                self._connection.cut()
            self._change.notify_all()

    def close(self) -> None:
        """Frees the connection; nobody receives from it any more."""
        self.cut()
        if self._connection is not None:
            self._connection.close()
