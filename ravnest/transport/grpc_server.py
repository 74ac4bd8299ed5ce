"""The listening half of the gRPC transport: one port, one thread per stream, counted refusals."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Any, cast

from ravnest.errors import AddressInUseError
from ravnest.transport.address import check_bindable
from ravnest.transport.credentials import Identity
from ravnest.transport.grpc_incoming import IncomingStream
from ravnest.transport.grpc_options import METHOD, SERVER_OPTIONS, SERVICE, grpc
from ravnest.transport.limits import MAX_LANES
from ravnest.transport.reception import Reception

_log = logging.getLogger(__name__)

# Streams of strangers are cut after a while; until then they take up room.
STREAMS_FOR_STRANGERS = 64


class _ThreadPerStream(futures.Executor):
    """Gives each stream its own thread, which no crash of the program has to wait for.

    A ThreadPoolExecutor would keep a process alive at exit that forgot to close its transport.
    """

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # the future carries it to gRPC, which logs it
                future.set_exception(error)
            with self._lock:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="ravnest-stream", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        with self._lock:
            threads = list(self._threads)
        for thread in threads if wait else ():
            thread.join()


class RefusalLog:
    """Counts refused streams and logs the first ones and then fewer and fewer."""

    def __init__(self, node_id: int) -> None:
        self.count = 0
        self._node_id = node_id
        self._lock = threading.Lock()

    def add(self, source: str, reason: str) -> None:
        """One more refused stream."""
        with self._lock:
            self.count += 1
            count = self.count
        if count <= 8 or count & (count - 1) == 0:
            _log.warning(
                "node %d refused a stream from %s and goes on: %s (refused so far: %d)",
                self._node_id,
                source,
                reason,
                count,
            )


class LinkServer:
    """Has its port from construction on, serves from `start` to `stop`."""

    def __init__(self, bind: str, reception: Reception, identity: Identity | None = None) -> None:
        self._reception = reception
        self._threads = _ThreadPerStream()
        self._streams: set[IncomingStream] = set()
        self._lock = threading.Lock()
        check_bindable(bind)
        self._server = grpc.server(
            cast(futures.ThreadPoolExecutor, self._threads),  # any executor serves
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=STREAMS_FOR_STRANGERS + MAX_LANES * len(reception.links),
        )
        handler = grpc.stream_unary_rpc_method_handler(self._serve, None, None)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            self.port = self._add_port(bind, identity)
        except RuntimeError as error:
            raise AddressInUseError(f"cannot listen on {bind}: {error}") from error

    def start(self) -> None:
        """Lets peers in."""
        self._server.start()

    def stop(self) -> None:
        """Frees the port, cuts what is still open and joins all threads."""
        self._server.stop(None).wait()
        self._threads.shutdown()
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            if stream.greeter.ident is not None:
                stream.greeter.join()

    def _add_port(self, bind: str, identity: Identity | None) -> int:
        if identity is None:
            return self._server.add_insecure_port(bind)
        secured = grpc.ssl_server_credentials(
            [(identity.key, identity.certificate)],
            root_certificates=identity.authority,
            require_client_auth=True,
        )
        return self._server.add_secure_port(bind, secured)

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        cancel = cast(Callable[[], None], context.cancel)
        stream = IncomingStream(
            self._reception, requests, context.peer(), cancel, _names_of(context)
        )
        with self._lock:
            self._streams.add(stream)
        context.add_callback(stream.terminated)
        try:
            return stream.serve()
        finally:
            with self._lock:
                self._streams.discard(stream)


def _names_of(context: grpc.ServicerContext) -> frozenset[str]:
    """What the certificate of who opened a stream is for; empty without one."""
    # Lists of values by key; the stubs say that they are single values.
    values = cast(Mapping[str, Iterable[bytes]], context.auth_context())
    names = values.get("x509_subject_alternative_name", ())
    return frozenset(name.decode(errors="replace") for name in names)
