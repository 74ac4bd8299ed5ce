"""Connects to the bulk port of one peer, as long as that works."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable

from ravnest.transport.address import split_address
from ravnest.transport.bulk_connection import ADMITTED, BulkConnection, BulkOffer
from ravnest.transport.knocking import Door

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
ADMISSION_TIMEOUT_S = 4.0


class BulkDialer:
    """Makes the bulk connections to one peer.

    The port may be closed to this node, by a firewall or an address translation that lets only the
    port of the plan through. Then one attempt is made, and payloads go over gRPC. Where it was
    reached before, it is tried again once the link to the peer was.

    Args:
        door: of the peer's gRPC.
        take_note: as in `BulkConnection`.
    """

    def __init__(self, door: Door, take_note: Callable[[], bytes] = bytes) -> None:
        self._door = door
        self._take_note = take_note
        self._host, _ = split_address(door.address)
        self._is_hopeless = False
        self._was_reached = False
        self._lock = threading.Lock()

    def renew(self) -> None:
        """The link to the peer is made again."""
        with self._lock:
            self._is_hopeless = self._is_hopeless and not self._was_reached

    def connect(self, offer: BulkOffer) -> BulkConnection | None:
        """A connection that the peer has admitted, None when there is none to be had."""
        with self._lock:  # who comes second need not wait for a timeout again
            if self._is_hopeless:
                return None
            try:
                admitted = self._admitted(offer)
                connection = BulkConnection(admitted, self._door.rate_bps, self._take_note)
            except OSError as error:
                self._is_hopeless = True
                _log.info(
                    "%s offers port %d for messages, which cannot be reached (%s); they go "
                    "over gRPC, which takes more processor time",
                    self._door.name,
                    offer.port,
                    error,
                )
                return None
            self._was_reached = True
            return connection

    def _admitted(self, offer: BulkOffer) -> socket.socket:
        connected = socket.create_connection((self._host, offer.port), CONNECT_TIMEOUT_S)
        try:
            connected.settimeout(ADMISSION_TIMEOUT_S)
            if self._door.identity is not None:
                context = self._door.identity.connecting
                connected = context.wrap_socket(connected, server_hostname=self._door.name)
            connected.sendall(offer.ticket)
            if connected.recv(len(ADMITTED)) != ADMITTED:
                raise ConnectionError("it was not admitted")
        except BaseException:
            connected.close()
            raise
        return connected
