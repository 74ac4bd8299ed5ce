"""What the link to a peer carries and how long it takes, measured against a listener there."""

from __future__ import annotations

import queue
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

from ravnest.config.addresses import dialable
from ravnest.errors import (
    ConfigError,
    PeerLostError,
    PeerUnreachableError,
    ProtocolError,
    TransportError,
)
from ravnest.probing import messages
from ravnest.probing.flow import Goodput, goodput, receive_until_end, send_for
from ravnest.probing.listener import (
    MAX_PROBE_S,
    MAX_TRANSFER_BYTES,
    MAX_TRANSFER_S,
    check_exposed,
)
from ravnest.probing.messages import Arrival, Kind
from ravnest.transport.address import why_unreachable
from ravnest.transport.grpc_options import CHANNEL_OPTIONS, grpc

# The type exists in the stubs only.
_Call: TypeAlias = "grpc.CallIterator[bytes]"

_WARM_PINGS = 3
_MIN_PINGS = 5
_MAX_PINGS = 200
_PING_S = 1.0
_CONNECT_S = 10.0
_SILENT = "it accepts connections but does not answer"


@dataclass(frozen=True, slots=True)
class LinkReading:
    """One link, both directions.

    Attributes:
        peer: its `host:port`.
        up, down: goodput from this machine to the peer, and back.
        round_trip_s: median over the pings.
        low_round_trip_s, high_round_trip_s: their first and last decile.
    """

    peer: str
    up: Goodput
    down: Goodput
    round_trip_s: float
    low_round_trip_s: float
    high_round_trip_s: float

    @property
    def bandwidth_bps(self) -> float:
        """The slower direction."""
        return min(self.up.bps, self.down.bps)

    @property
    def one_way_s(self) -> float:
        """Delay of a message from end to end: half of the round trip."""
        return self.round_trip_s / 2


def measure_link(peer: str, *, seconds: float = 4.0, insecure: bool = False) -> LinkReading:
    """Measures latency, then download, then upload, against `ravnest benchmark --listen` at `peer`.

    Args:
        peer: `host:port` of the listener.
        seconds: for each direction, up to 10; the first half lets the transfer get going.
        insecure: allow a peer that is not on loopback, although nothing is encrypted.

    Raises:
        ConfigError: the address or the seconds are wrong, or not loopback without `insecure`.
        PeerUnreachableError: nobody listens there.
        PeerLostError: the link was cut while it was measured.
        ProtocolError: what listens there is no listener, or of another version.
        TransportError: it is busy, or so little came through that there is no rate.
    """
    if not 0 < seconds <= MAX_TRANSFER_S:
        raise ConfigError(
            f"seconds is {seconds:g}; expected more than 0, at most {MAX_TRANSFER_S:g}"
        )
    try:
        address = dialable(peer)
    except ValueError as error:
        raise ConfigError(
            f"peer {peer!r}: {error}", hint='write host:port, such as "203.0.113.5:8080"'
        ) from None
    check_exposed(address, insecure=insecure)
    with _Conversation(address) as conversation:
        trips = conversation.round_trips()
        round_trip_s = statistics.median(trips)
        down = conversation.download(seconds, round_trip_s)
        up = conversation.upload(seconds, round_trip_s)
    deciles = statistics.quantiles(trips, n=10, method="inclusive")
    return LinkReading(peer, goodput(up), goodput(down), round_trip_s, deciles[0], deciles[-1])


class _Conversation:
    """One stream to a listener; whatever goes wrong in it comes out as one of our errors."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._doing: str | None = None
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        method = self._channel.stream_stream(f"/{messages.SERVICE}/{messages.METHOD}", None, None)
        self._call: _Call = method(iter(self._outgoing.get, None), timeout=MAX_PROBE_S + _CONNECT_S)
        self._incoming = self._receive()

    def __enter__(self) -> _Conversation:
        try:
            self._outgoing.put(messages.begin())
            messages.check_version(next(self._incoming), Kind.READY)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        self._outgoing.put(None)
        self._call.cancel()  # type: ignore[no-untyped-call]
        self._channel.close()

    def round_trips(self) -> list[float]:
        """Seconds of each ping, the first few left out."""
        self._doing = "while latency was measured"
        trips: list[float] = []
        ends = time.perf_counter() + _PING_S
        while len(trips) < _WARM_PINGS + _MIN_PINGS or (
            time.perf_counter() < ends and len(trips) < _MAX_PINGS
        ):
            started = time.perf_counter()
            self._outgoing.put(messages.ping(len(trips)))
            if messages.fields(next(self._incoming), Kind.PONG) != (len(trips),):
                raise ProtocolError(f"{self._address} answered another ping than the last")
            trips.append(time.perf_counter() - started)
        return trips[_WARM_PINGS:]

    def download(self, seconds: float, round_trip_s: float) -> list[Arrival]:
        """Has the listener send."""
        self._doing = "while downloading"
        self._outgoing.put(messages.transfer(Kind.DOWNLOAD, seconds, round_trip_s))
        arrivals: list[Arrival] = []
        for arrival in receive_until_end(self._incoming):
            self._outgoing.put(messages.ack(arrival))
            arrivals.append(arrival)
        return arrivals

    def upload(self, seconds: float, round_trip_s: float) -> list[Arrival]:
        """Sends to the listener."""
        self._doing = "while uploading"
        self._outgoing.put(messages.transfer(Kind.UPLOAD, seconds, round_trip_s))
        arrivals: list[Arrival] = []
        for message in send_for(
            seconds,
            self._incoming,
            round_trip_s=round_trip_s,
            max_bytes=MAX_TRANSFER_BYTES,
            arrived=arrivals.append,
        ):
            self._outgoing.put(message)
        return arrivals

    def _receive(self) -> Iterator[bytes]:
        """The listener's messages; ends in an error, never in silence."""
        try:
            for raw in self._call:
                if messages.kind_of(raw) is Kind.REFUSED:
                    raise self._refusal(messages.parse_refused(raw))
                yield raw
        except grpc.RpcError as error:
            raise self._broken(error.code(), error.details()) from None
        raise self._lost("it ended the probe")

    def _refusal(self, reason: str) -> TransportError:
        text = f"{self._address} refuses to be probed: {reason}"
        if "busy" in reason:
            return TransportError(text, hint="try again when that probe is over")
        return ProtocolError(text)

    def _broken(self, code: grpc.StatusCode, details: str | None) -> TransportError:
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return self._not_a_listener("it answers gRPC, but not to probes")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and not self._doing:
            return TransportError(f"{self._address} takes no more streams")
        if self._doing:
            return self._lost(details or code.name)
        reason = why_unreachable(self._address)
        if reason == _SILENT:
            return self._not_a_listener(f"{reason} ({details or code.name})")
        return PeerUnreachableError(
            f"{self._address} cannot be reached: {reason}", hint=_how_to_listen(self._address)
        )

    def _not_a_listener(self, reason: str) -> ProtocolError:
        return ProtocolError(
            f"what listens at {self._address} is no `ravnest benchmark --listen`: {reason}",
            hint=_how_to_listen(self._address),
        )

    def _lost(self, reason: str) -> PeerLostError:
        when = self._doing or "before the probe began"
        return PeerLostError(
            f"the link to {self._address} was cut {when}: {reason}",
            hint="see that the listener still runs, and measure again",
        )


def _how_to_listen(address: str) -> str:
    return f"run `ravnest benchmark --listen --address {address}` on that machine"
