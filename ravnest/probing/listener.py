"""The answering end of a probe: one at a time, with caps on time and bytes, for anybody.

A service of its own beside the transport's. The transport connects the numbered nodes of one plan,
each of which dials the others and is refused without the plan's hash; a probe comes before there is
a plan, may come from a machine that nobody can dial, and measures the link, not the windows and
buffers of the lanes. Channel and server options are the transport's.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
from collections.abc import Generator, Iterator
from concurrent import futures
from typing import TYPE_CHECKING

from ravnest.errors import AddressInUseError, ConfigError, ProtocolError
from ravnest.probing import messages
from ravnest.probing.flow import receive_until_end, send_for
from ravnest.probing.messages import Kind
from ravnest.transport.address import check_bindable, is_loopback
from ravnest.transport.grpc_options import SERVER_OPTIONS, grpc

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger(__name__)

MAX_TRANSFER_S = 10.0
MAX_TRANSFERS = 2
MAX_TRANSFER_BYTES = 32 << 30
MAX_PINGS = 1000
# Of a whole probe: its transfers, what is under way when they end, and the pings.
MAX_PROBE_S = 60.0
# Until BEGIN a stream is a stranger's.
MAX_SILENCE_S = 5.0
_MAX_STREAMS = 8
# On Windows a wait does not end on Ctrl-C; elsewhere it need not be cut up.
_UNINTERRUPTED_S = 1.0 if sys.platform == "win32" else threading.TIMEOUT_MAX
# For the window alone; the listener does not measure it.
_ASSUMED_ROUND_TRIP_S = 0.25


def check_exposed(address: str, *, insecure: bool) -> None:
    """Raises ConfigError for an address beyond loopback, unless that is meant."""
    if not is_loopback(address) and not insecure:
        raise ConfigError(
            f"{address} is not loopback, and probes are neither encrypted nor authenticated",
            hint="pass --insecure if everybody who reaches that address is trusted",
        )


class ProbeListener:
    """Listens from construction to `close`; a context manager.

    Attributes:
        port: that it listens on.
        num_probes: accepted so far.

    Args:
        bind: `host:port` to listen on; port 0 takes any free one.
        insecure: allow an address that is not loopback: whoever reaches it can make this machine
            send and receive for a minute at a time.

    Raises:
        ConfigError: the address is malformed, or not loopback without `insecure`.
        AddressInUseError: it cannot be listened on.
    """

    def __init__(self, bind: str, *, insecure: bool = False) -> None:
        check_exposed(bind, insecure=insecure)
        check_bindable(bind)
        self.num_probes = 0
        self._busy_with: str | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pool = futures.ThreadPoolExecutor(_MAX_STREAMS, "ravnest-probe")
        limits = (("grpc.max_receive_message_length", messages.MAX_MESSAGE_BYTES),)
        self._server = grpc.server(
            self._pool, options=(*SERVER_OPTIONS, *limits), maximum_concurrent_rpcs=_MAX_STREAMS
        )
        handler = grpc.stream_stream_rpc_method_handler(self._serve, None, None)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(messages.SERVICE, {messages.METHOD: handler}),)
        )
        try:
            self.port = self._server.add_insecure_port(bind)
        except RuntimeError as error:
            self._pool.shutdown()
            raise AddressInUseError(f"cannot listen on {bind}: {error}") from error
        self._server.start()

    def wait(self, seconds: float | None = None) -> None:
        """Goes on listening for so long, or until the process is interrupted."""
        ends = math.inf if seconds is None else time.monotonic() + seconds
        while (left_s := ends - time.monotonic()) > 0:
            self._closed.wait(min(left_s, _UNINTERRUPTED_S))
            if self._closed.is_set():
                return

    def close(self) -> None:
        """Cuts a running probe, frees the port and joins the threads; idempotent."""
        self._closed.set()
        self._server.stop(None).wait()
        self._pool.shutdown()

    def __enter__(self) -> ProbeListener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        source = context.peer()
        # The only way to end a read that nothing comes for.
        watchdog = _Watchdog(context)
        try:
            watchdog.limit(MAX_SILENCE_S)
            messages.check_version(next(requests), Kind.BEGIN)
            with self._lock:
                other, self._busy_with = self._busy_with, self._busy_with or source
            if other is not None:
                raise ProtocolError(f"it is busy with a probe from {other}")
            try:
                watchdog.limit(MAX_PROBE_S)
                self.num_probes += 1
                _log.info("a probe from %s", source)
                yield messages.ready()
                yield from _converse(requests)
            finally:
                with self._lock:
                    self._busy_with = None
        except ProtocolError as error:
            _log.warning("refused a probe from %s and goes on: %s", source, error.message)
            yield messages.refused(error.message)
        except (grpc.RpcError, StopIteration):
            _log.info("the probe from %s has gone", source)
        finally:
            watchdog.close()


class _Watchdog:
    """Cancels a stream after so many seconds."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self._context = context
        self._timer: threading.Timer | None = None

    def limit(self, seconds: float) -> None:
        """Starts anew with another limit."""
        self.close()
        self._timer = threading.Timer(seconds, self._context.cancel)
        self._timer.start()

    def close(self) -> None:
        """Cancels nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


def _converse(requests: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Answers until the probe ends its requests, or more than is allowed."""
    num_pings = num_transfers = 0
    for raw in requests:
        match messages.kind_of(raw):
            case Kind.PING:
                num_pings += 1
                yield messages.pong(raw)
            case Kind.DOWNLOAD:
                num_transfers += 1
                yield from send_for(
                    _seconds(raw, Kind.DOWNLOAD),
                    requests,
                    round_trip_s=_ASSUMED_ROUND_TRIP_S,
                    max_bytes=MAX_TRANSFER_BYTES,
                )
            case Kind.UPLOAD:
                num_transfers += 1
                _seconds(raw, Kind.UPLOAD)
                yield from receive_until_end(requests)
            case other:
                raise ProtocolError(f"a {other.name} came; expected PING, DOWNLOAD or UPLOAD")
        if num_pings > MAX_PINGS or num_transfers > MAX_TRANSFERS:
            raise ProtocolError(
                f"a probe may have {MAX_PINGS} pings and {MAX_TRANSFERS} transfers at most"
            )


def _seconds(raw: bytes, kind: Kind) -> float:
    (milliseconds,) = messages.fields(raw, kind)
    seconds = int(milliseconds) * 1e-3
    if not 0 < seconds <= MAX_TRANSFER_S:
        raise ProtocolError(
            f"a transfer of {seconds:g} s is asked for; more than 0 and at most "
            f"{MAX_TRANSFER_S:g} s are allowed"
        )
    return seconds
