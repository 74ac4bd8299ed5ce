"""The two neighbours of a ring member, and frames to and from them. Knows nothing of averaging."""

from __future__ import annotations

from ravnest.errors import ProtocolError
from ravnest.plan.model import RingMembership
from ravnest.transport.interface import Message, Transport
from ravnest.wire.codec import decode, encode
from ravnest.wire.frame import Codec, Frame, FrameKind, Scalar


class RingLane:
    """Sends to the next member of a ring and receives from the one before; counts what it sends.

    Attributes:
        ring: the membership it serves.
        num_sent_bytes: headers and payloads handed to the transport so far.
    """

    def __init__(self, ring: RingMembership, transport: Transport) -> None:
        self.ring = ring
        self.num_sent_bytes = 0
        self._transport = transport
        self._name = f"ring-{ring.ring_id}"
        self._next = ring.members[(ring.rank + 1) % ring.size]
        self._previous = ring.members[(ring.rank - 1) % ring.size]

    def send(self, message: Message, *, purpose: str) -> None:
        """Hands a message for the next member to the transport; raises as `Transport.send`."""
        self._transport.send(self._next, self._name, message, purpose=purpose)
        self.num_sent_bytes += len(message.header) + message.num_bytes

    def receive(self, kind: FrameKind, *, purpose: str) -> tuple[Message, Frame]:
        """The next message of the member before, raw and decoded.

        Raises:
            ProtocolError: it cannot be decoded, or is of another kind.
            TransportError: as `Transport.receive`.
        """
        message = self._transport.receive(self._previous, self._name, purpose=purpose)
        frame = decode(message.header, memoryview(message.payload[0]))
        if frame.kind is not kind:
            raise ProtocolError(
                f"{purpose}: node {self._previous} sent {frame.kind.name}, expected {kind.name}"
            )
        self.expect(frame, "ring", self.ring.ring_id, purpose=purpose)
        return message, frame

    def gather(self, own: Frame, *, purpose: str) -> list[Frame]:
        """Passes small frames once around the ring: those of all members, by rank.

        Each member sends its own, then passes on what it receives; every send but the first comes
        after a receive, so one credit is enough.
        """
        rank, size = self.ring.rank, self.ring.size
        frames = {rank: own}
        message = message_of(own)
        for step in range(size - 1):
            self.send(message, purpose=purpose)
            message, frame = self.receive(own.kind, purpose=purpose)
            origin = (rank - 1 - step) % size
            self.expect(frame, "rank", origin, purpose=purpose)
            frames[origin] = frame
        return [frames[member] for member in range(size)]

    def scalars(self, **more: Scalar) -> dict[str, Scalar]:
        """The scalars every small frame of this member carries, and more."""
        return {"ring": self.ring.ring_id, "rank": self.ring.rank, **more}

    def expect(self, frame: Frame, name: str, value: Scalar, *, purpose: str) -> None:
        """Raises ProtocolError unless a scalar of a frame has exactly this value."""
        got = frame.scalars.get(name)
        if type(got) is not type(value) or got != value:
            raise ProtocolError(
                f"{purpose}: node {self._previous} sent {name} {got!r}, expected {value!r}"
            )

    def fail(self, purpose: str, got: str, expected: str) -> ProtocolError:
        """The error for something wrong from the member before."""
        return ProtocolError(f"{purpose}: node {self._previous} sent {got}, expected {expected}")


def message_of(frame: Frame, codec: Codec = Codec.RAW) -> Message:
    """A frame as the transport takes it."""
    header, buffers = encode(frame, codec)
    return Message(header, tuple(buffers))
