"""The port that bulk connections come to: hands each to the lane whose ticket it shows."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Container

from ravnest.transport.address import listen
from ravnest.transport.bulk_connection import ADMITTED, TICKET_BYTES, BulkConnection, BulkOffer

_log = logging.getLogger(__name__)

SHOW_TICKET_S = 10.0
# That have shown no ticket yet; the next ones are turned away.
MAX_STRANGERS = 64

# Of all interfaces, which not every system lets connect to.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}

Serve = Callable[[BulkConnection], None]


class BulkListener:
    """Listens on a free port of the host that gRPC listens on, from construction to `stop`.

    Every connection has a thread of its own, which first admits it and then serves the lane.

    Args:
        bind: `host:port` of gRPC.
        context: for TLS; None: plain TCP.
        taken: ports that are free perhaps, but not for this.

    Raises:
        AddressInUseError: there is no port to be had.
    """

    def __init__(
        self,
        bind: str,
        context: ssl.SSLContext | None = None,
        taken: Container[int] = frozenset(),
    ) -> None:
        self._context = context
        self._lanes: dict[bytes, Serve] = {}
        self._connected: dict[bytes, BulkConnection] = {}
        self._strangers: dict[threading.Thread, socket.socket] = {}
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._is_stopping = False
        self._listener = _listen_beside(bind, taken)
        host, self._port = self._listener.getsockname()[:2]
        self._own_address = _LOOPBACK.get(host, host), self._port
        self._acceptor = threading.Thread(
            target=self._accept, name="ravnest-bulk-accept", daemon=True
        )
        self._acceptor.start()

    def offer(self, serve: Serve) -> BulkOffer:
        """A place for the connection of one more lane.

        Args:
            serve: called with the connection, when it comes, in a thread of its own.
        """
        ticket = secrets.token_bytes(TICKET_BYTES)
        with self._lock:
            self._lanes[ticket] = serve
        return BulkOffer(self._port, ticket)

    def withdraw(self, offer: BulkOffer) -> None:
        """The lane is over: cuts its connection; its ticket is no good any more."""
        with self._lock:
            self._lanes.pop(offer.ticket, None)
            if (connection := self._connected.get(offer.ticket)) is not None:
                connection.cut()

    def stop(self) -> None:
        """Frees the port and cuts all connections."""
        with self._lock:
            self._is_stopping = True
            self._lanes.clear()
            for connection in self._connected.values():
                connection.cut()
            for stranger in self._strangers.values():
                _shut(stranger)
        _shut(self._listener)
        # Where shutting a listener does not wake who accepts, a visitor does.
        with contextlib.suppress(OSError):
            socket.create_connection(self._own_address, 0.2).close()
        self._acceptor.join()
        self._listener.close()

    def join(self) -> None:
        """Waits for the threads of all lanes, after `stop` and once the lanes are over."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                stranger, address = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(
                target=self._welcome, args=(stranger,), name="ravnest-bulk", daemon=True
            )
            with self._lock:
                is_welcome = not self._is_stopping and len(self._strangers) < MAX_STRANGERS
                if is_welcome:
                    self._strangers[thread] = stranger
                    self._threads.add(thread)
                    thread.start()
            if not is_welcome:
                _log.debug("turned %s away: stopping, or too many are there", address)
                stranger.close()

    def _welcome(self, stranger: socket.socket) -> None:
        thread = threading.current_thread()
        connected = stranger
        try:
            connected = self._secured(stranger)
            ticket = _read_ticket(connected)
            with self._lock:
                del self._strangers[thread]
                serve = self._lanes.pop(ticket, None)
                if serve is None:
                    raise ConnectionError("its ticket is not good")
                self._connected[ticket] = connection = BulkConnection(connected)
            try:
                connected.sendall(ADMITTED)
                serve(connection)
            finally:
                with self._lock:
                    del self._connected[ticket]
        except OSError as error:
            _log.debug("a bulk connection was not admitted: %s", error)
        finally:
            connected.close()
            with self._lock:
                self._strangers.pop(thread, None)
                self._threads.discard(thread)

    def _secured(self, stranger: socket.socket) -> socket.socket:
        """The socket, or TLS around it, with its peer's certificate verified."""
        stranger.settimeout(SHOW_TICKET_S)
        if self._context is None:
            return stranger
        with self._lock:  # what `stop` shuts is always the one that works
            secured = self._context.wrap_socket(
                stranger, server_side=True, do_handshake_on_connect=False
            )
            self._strangers[threading.current_thread()] = secured
            if self._is_stopping:
                _shut(secured)
        try:
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured


def _listen_beside(bind: str, taken: Container[int]) -> socket.socket:
    listener = listen(bind, port=0)
    if listener.getsockname()[1] not in taken:
        return listener
    with contextlib.closing(listener):  # held meanwhile, so that another one is found
        return _listen_beside(bind, taken)


def _read_ticket(connected: socket.socket) -> bytes:
    """OSError when it does not come in time, all of it together."""
    deadline = time.monotonic() + SHOW_TICKET_S
    got = b""
    while len(got) < TICKET_BYTES:
        connected.settimeout(max(0.01, deadline - time.monotonic()))
        if not (more := connected.recv(TICKET_BYTES - len(got))):
            raise ConnectionError("it showed no ticket")
        got += more
    return got


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is over already
        socket.socket.shutdown(each, socket.SHUT_RDWR)
