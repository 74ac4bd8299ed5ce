"""The port that bulk connections come to: hands each to the lane whose ticket it shows."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time

from ravnest.errors import AddressInUseError
from ravnest.transport.address import listen
from ravnest.transport.bulk_connection import ADMITTED, TICKET_BYTES, BulkConnection, BulkOffer
from ravnest.transport.bulk_slot import BulkSlot

_log = logging.getLogger(__name__)

SHOW_TICKET_S = 10.0
# That have shown no ticket yet; the next ones are turned away.
MAX_STRANGERS = 64


class BulkListener:
    """Listens on a free port of the host that gRPC listens on, from construction to `stop`.

    Args:
        bind: `host:port` of gRPC.
        context: for TLS; None: plain TCP.

    Raises:
        AddressInUseError: there is no port to be had.
    """

    def __init__(self, bind: str, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._slots: dict[bytes, BulkSlot] = {}
        self._strangers: dict[threading.Thread, socket.socket] = {}
        self._lock = threading.Lock()
        self._is_stopping = False
        self._listener = listen(bind, port=0)
        self._port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(
            target=self._accept, name="ravnest-bulk-accept", daemon=True
        )
        self._acceptor.start()

    def offer(self) -> BulkSlot:
        """A place for the connection of one more lane."""
        slot = BulkSlot(BulkOffer(self._port, secrets.token_bytes(TICKET_BYTES)))
        with self._lock:
            self._slots[slot.offer.ticket] = slot
            if self._is_stopping:
                slot.cut()
        return slot

    def withdraw(self, slot: BulkSlot) -> None:
        """The lane is over: frees its connection; its ticket is no good any more."""
        with self._lock:
            del self._slots[slot.offer.ticket]
        slot.close()

    def stop(self) -> None:
        """Frees the port, ends what is received and joins all threads."""
        with self._lock:
            self._is_stopping = True
            for slot in self._slots.values():
                slot.cut()
            for stranger in self._strangers.values():
                _shut(stranger)
            threads = [self._acceptor, *self._strangers]
        _shut(self._listener)
        # Where shutting a listener does not wake who accepts, a visitor does.
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname()[:2], 0.2).close()
        for thread in threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                stranger, address = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(
                target=self._admit, args=(stranger,), name="ravnest-bulk-admit", daemon=True
            )
            with self._lock:
                is_welcome = not self._is_stopping and len(self._strangers) < MAX_STRANGERS
                if is_welcome:
                    self._strangers[thread] = stranger
                    thread.start()
            if not is_welcome:
                _log.debug("turned %s away: stopping, or too many wait", address)
                stranger.close()

    def _admit(self, stranger: socket.socket) -> None:
        try:
            if not self._is_admitted(stranger):
                self._strangers[threading.current_thread()].close()
        finally:
            with self._lock:
                del self._strangers[threading.current_thread()]

    def _secured(self, stranger: socket.socket) -> socket.socket:
        """The socket, or TLS around it, which has yet to be agreed upon."""
        stranger.settimeout(SHOW_TICKET_S)
        if self._context is None:
            return stranger
        with self._lock:  # what `stop` shuts is always the one that works
            secured = self._context.wrap_socket(
                stranger, server_side=True, do_handshake_on_connect=False
            )
            self._strangers[threading.current_thread()] = secured
        return secured

    def _is_admitted(self, stranger: socket.socket) -> bool:
        try:
            connected = self._secured(stranger)
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
            slot = self._slots.get(_read(connected, TICKET_BYTES))
            if slot is None:
                return False
            connected.sendall(ADMITTED)
            return slot.put(BulkConnection(connected))
        except OSError as error:
            _log.debug("a bulk connection was not admitted: %s", error)
            return False


def _read(connected: socket.socket, num_bytes: int) -> bytes:
    """That many bytes; OSError when they do not come in time, all of them together."""
    deadline = time.monotonic() + SHOW_TICKET_S
    got = b""
    while len(got) < num_bytes:
        connected.settimeout(max(0.01, deadline - time.monotonic()))
        if not (more := connected.recv(num_bytes - len(got))):
            raise ConnectionError("it showed no ticket")
        got += more
    return got


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is over already
        socket.socket.shutdown(each, socket.SHUT_RDWR)
