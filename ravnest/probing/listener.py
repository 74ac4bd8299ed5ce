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
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ravnest.errors import AddressInUseError, ConfigError, PeerLostError, ProtocolError
from ravnest.probing import messages
from ravnest.probing.flow import receive_until_end, send_for
from ravnest.probing.messages import Kind
from ravnest.transport.address import check_bindable, is_loopback
from ravnest.transport.grpc_options import SERVER_OPTIONS, grpc

if TYPE_CHECKING:
    from types import TracebackType

_log = logging.getLogger(__name__)

MAX_TRANSFER_S = 10.0
MAX_TRANSFER_BYTES = 32 << 30
MAX_PROBE_S = 60.0
# A longer one may be said, but gets no larger window.
_MAX_ROUND_TRIP_S = 1.0
_MAX_STREAMS = 8
_MAX_RECEIVED = "grpc.max_receive_message_length"
# On Windows a wait does not end on Ctrl-C; elsewhere it need not be cut up.
_UNINTERRUPTED_S = 1.0 if sys.platform == "win32" else threading.TIMEOUT_MAX


@dataclass(frozen=True, slots=True)
class Caps:
    """What a stranger can make a listener do at most.

    Attributes:
        silence_s: until a stream begins a probe; it is cut then.
        probe_s: of a whole probe: its pings, its transfers, and what is under way when they end.
        transfer_s: of one transfer.
        transfer_bytes: of one download.
        num_transfers, num_pings: in one probe.
    """

    silence_s: float = 5.0
    probe_s: float = MAX_PROBE_S
    transfer_s: float = MAX_TRANSFER_S
    transfer_bytes: int = MAX_TRANSFER_BYTES
    num_transfers: int = 2
    num_pings: int = 1000


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
        caps: on what a probe may ask for.

    Raises:
        ConfigError: the address is malformed, or not loopback without `insecure`.
        AddressInUseError: it cannot be listened on.
    """

    def __init__(self, bind: str, *, insecure: bool = False, caps: Caps | None = None) -> None:
        check_exposed(bind, insecure=insecure)
        check_bindable(bind)
        self.num_probes = 0
        self._caps = caps or Caps()
        self._busy_with: str | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pool = futures.ThreadPoolExecutor(_MAX_STREAMS, "ravnest-probe")
        options = {**dict(SERVER_OPTIONS), _MAX_RECEIVED: messages.MAX_MESSAGE_BYTES}
        self._server = grpc.server(
            self._pool, options=tuple(options.items()), maximum_concurrent_rpcs=_MAX_STREAMS
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
            watchdog.limit(self._caps.silence_s)
            incoming = _until_gone(requests)
            messages.check_version(next(incoming), Kind.BEGIN)
            with self._lock:
                other, self._busy_with = self._busy_with, self._busy_with or source
            if other is not None:
                raise ProtocolError(f"it is busy with a probe from {other}")
            try:
                watchdog.limit(self._caps.probe_s)
                self.num_probes += 1
                _log.info("a probe from %s", source)
                yield messages.ready()
                yield from _converse(incoming, self._caps)
            finally:
                with self._lock:
                    self._busy_with = None
        except ProtocolError as error:
            _log.warning("refused a probe from %s and goes on: %s", source, error.message)
            yield messages.refused(error.message)
        except (grpc.RpcError, PeerLostError):
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


def _until_gone(requests: Iterator[bytes]) -> Iterator[bytes]:
    """The requests, with an error at their end: generators may not pass on StopIteration."""
    yield from requests
    raise PeerLostError("the probe has gone")


def _converse(requests: Iterator[bytes], caps: Caps) -> Generator[bytes, None, None]:
    """Answers until the probe ends its requests, or more than is allowed."""
    num_pings = num_transfers = 0
    for raw in requests:
        match messages.kind_of(raw):
            case Kind.PING:
                num_pings += 1
                yield messages.pong(raw)
            case Kind.DOWNLOAD:
                num_transfers += 1
                seconds, round_trip_s = _asked(raw, Kind.DOWNLOAD, caps)
                yield from send_for(
                    seconds,
                    requests,
                    round_trip_s=round_trip_s,
                    max_bytes=caps.transfer_bytes,
                )
            case Kind.UPLOAD:
                num_transfers += 1
                _asked(raw, Kind.UPLOAD, caps)
                yield from map(messages.ack, receive_until_end(requests))
            case other:
                raise ProtocolError(f"a {other.name} came; expected PING, DOWNLOAD or UPLOAD")
        if num_pings > caps.num_pings or num_transfers > caps.num_transfers:
            raise ProtocolError(
                f"a probe may have {caps.num_pings} pings, {caps.num_transfers} transfers at most"
            )


def _asked(raw: bytes, kind: Kind, caps: Caps) -> tuple[float, float]:
    """Seconds of a transfer, and of a round trip."""
    milliseconds, microseconds = messages.fields(raw, kind)
    seconds = int(milliseconds) * 1e-3
    if not 0 < seconds <= caps.transfer_s:
        raise ProtocolError(
            f"a transfer of {seconds:g} s is asked for; more than 0 and at most "
            f"{caps.transfer_s:g} s are allowed"
        )
    return seconds, min(int(microseconds) * 1e-6, _MAX_ROUND_TRIP_S)
