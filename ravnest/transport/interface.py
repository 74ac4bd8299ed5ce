"""What every transport offers: ordered messages between named peers, on long-lived lanes.

Knows bytes and peers; knows nothing of tensors, stages or training.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ravnest.errors import ConfigError

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Message:
    """A header and the raw bytes that belong to it.

    Attributes:
        header: small, opaque to the transport.
        payload: on the way out any number of buffers, sent in this order; on the way in exactly
            one writable buffer with all of them joined (empty payload: one empty buffer).
        content: on the way in, what the opener of its lane made of both (see
            `Transport.open_early`), which are empty then; else None.
    """

    header: bytes
    payload: Sequence[Buffer] = ()
    content: object = None

    @property
    def num_bytes(self) -> int:
        """Payload bytes, the header not counted."""
        num_bytes = 0
        for buffer in self.payload:  # asked for every message: half of what a generator takes
            num_bytes += memoryview(buffer).nbytes
        return num_bytes


Opener = Callable[[Message], object]


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a peer is reached.

    Attributes:
        node_id: the peer.
        address: `host:port`; a bracketed IPv6 host, a DNS name or an IPv4 address.
        rate_bps: bits per second that the link to it can do, None where that is not known.
    """

    node_id: int
    address: str
    rate_bps: float | None = None


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """The knobs of a transport; everything else is derived from them.

    Attributes:
        timeout_s: how long any wait for a peer may last before it is an error.
        report_every_s: a longer wait is reported in the log this often.
        window: messages a sender may have unconsumed at the receiver, per lane.
        max_payload_bytes: a larger message from a peer is a protocol error.
        reconnect_s: how long a link that broke may take to come back before the peer is lost;
            0: it is at once. A wait for the peer ends after `timeout_s` all the same.
        bulk: offer a second port, a free one, where peers may bring messages to without
            gRPC's copies; those that cannot reach it send them over gRPC.
    """

    timeout_s: float = 600.0
    report_every_s: float = 10.0
    window: int = 16
    max_payload_bytes: int = 1 << 40
    reconnect_s: float = 60.0
    bulk: bool = True

    def __post_init__(self) -> None:
        for name in ("timeout_s", "report_every_s", "window", "max_payload_bytes"):
            # Written so that NaN is refused too.
            if not (value := getattr(self, name)) > 0:
                raise ConfigError(f"{name} is {value}, expected a positive number")
        if not self.reconnect_s >= 0:
            raise ConfigError(f"reconnect_s is {self.reconnect_s}, expected seconds, or 0 for off")


@dataclass(frozen=True, slots=True)
class Formats:
    """How payloads are written, by names that mean nothing to the transport.

    Peers tell each other when they connect; one that would be sent what it does not understand is
    refused then, and refuses, so that both ends say why, and nothing breaks in the middle of a run.

    Attributes:
        understood: what this node can read.
        used: per peer what this node will write to it.
    """

    understood: frozenset[str] = frozenset()
    used: Mapping[int, frozenset[str]] = field(default_factory=dict)


class Transport(abc.ABC):
    """Ordered, reliable messages between the nodes of one plan.

    A lane is a name for one stream in one direction between two nodes ("forward", "backward",
    "ring-0"), of 1 to 128 characters; messages on a lane arrive in the order they were sent. All
    methods may be called from any thread. After `close` or `abort` sending, receiving and
    starting raise TransportError. A failed or lost peer ends the waits for every other peer too.
    """

    @abc.abstractmethod
    def start(self) -> None:
        """Begins to listen. Raises AddressInUseError when the address is taken."""

    @abc.abstractmethod
    def send(self, peer: int, lane: str, message: Message, *, purpose: str) -> None:
        """Queues a message; blocks only while `window` earlier ones are unconsumed.

        The stream is opened by the first send and may be opened before the peer is there: until
        it comes, messages wait. The buffers of the payload must not change before the
        receiver has them; senders hand over fresh or immutable buffers. They are held until the
        receiver says so, to be sent again should the link break.

        Args:
            purpose: what is sent, in words, for the log and for errors.

        Raises:
            PeerUnreachableError: the peer did not come within `timeout_s`.
            PeerLostError: the peer has gone, or did not consume within `timeout_s`.
            PeerFailedError: the peer reported a failure.
        """

    @abc.abstractmethod
    def receive(
        self, peer: int, lane: str, *, purpose: str, within_s: float | None = None
    ) -> Message:
        """Takes the next message of a lane, waiting for it, and gives its sender one credit.

        Args:
            purpose: what is awaited, in words, for the log and for errors.
            within_s: an earlier deadline than `timeout_s`, for this message alone; it does not
                count once the link to the peer breaks meanwhile.

        Raises:
            PeerUnreachableError: the peer did not come within `timeout_s`.
            PeerLostError: the peer has gone, or sent nothing within `timeout_s`.
            PeerFailedError: the peer reported a failure.
            ProtocolError: the peer broke the protocol.
        """

    @abc.abstractmethod
    def has_message(self, peer: int, lane: str) -> bool:
        """Whether `receive` would not have to wait."""

    @abc.abstractmethod
    def open_early(self, lanes: Collection[str], opener: Opener) -> None:
        """Has messages of these lanes opened while the receiver does something else.

        Those that are here already stay as they are, and so do those that the opener raises for:
        they come with their bytes, and the receiver finds out itself what is wrong with them.

        Args:
            opener: called in a thread of the transport's; the payload is its own.
        """

    @abc.abstractmethod
    def abort(self, reason: str) -> None:
        """Tells every peer that this node failed and why, then closes; never raises."""

    @abc.abstractmethod
    def close(self) -> None:
        """Delivers what is queued, says goodbye to every peer and frees port and threads.

        Idempotent. A peer that awaits something from this node afterwards gets PeerLostError.
        """
