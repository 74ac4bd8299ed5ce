"""Frames between the members of a ring, mostly neighbours. Knows nothing of averaging."""

from __future__ import annotations

import time
from collections.abc import Hashable

from ravnest.averaging.deadlines import Deadlines
from ravnest.errors import ProtocolError
from ravnest.plan.parts import RingMembership
from ravnest.transport.interface import Message, Transport
from ravnest.wire.codec import decode, encode
from ravnest.wire.frame import Codec, Frame, FrameKind, Scalar


class RingLane:
    """Sends to the next member of a ring and receives from the one before; counts what it sends.

    In a ring of few members small frames go straight to everybody: one link's delay instead of one
    per member.

    Others may come to a round late for good reasons, a longer validation say, so their headers have
    the transport's own deadline. What follows comes from members that are in the round.

    Args:
        deadlines: of what follows the headers, by kind and sender; None: the transport's own.

    Attributes:
        ring: the membership it serves.
        num_sent_bytes: headers and payloads handed to the transport so far.
        longest_waits: for what has deadlines, in seconds by key.
    """

    def __init__(
        self, ring: RingMembership, transport: Transport, deadlines: Deadlines | None = None
    ) -> None:
        self.ring = ring
        self.num_sent_bytes = 0
        self.longest_waits: dict[Hashable, float] = {}
        self._deadlines = deadlines
        self._transport = transport
        self._name = f"ring-{ring.ring_id}"
        self._next = ring.members[(ring.rank + 1) % ring.size]
        self._previous = ring.members[(ring.rank - 1) % ring.size]

    def send(self, message: Message, *, purpose: str) -> None:
        """Hands a message for the next member to the transport; raises as `Transport.send`."""
        self._send_to(self._next, message, purpose)

    def receive(self, kind: FrameKind, *, purpose: str) -> tuple[Message, Frame]:
        """The next message of the member before, raw and decoded.

        Raises:
            ProtocolError: it cannot be decoded, or is of another kind.
            TransportError: as `Transport.receive`.
        """
        return self._receive_from(self._previous, kind, purpose)

    def gather(self, own: Frame, *, purpose: str) -> list[Frame]:
        """Gives a small frame to all members and takes theirs: by rank.

        One credit per lane is enough: straight, a member sends one frame on each of its lanes;
        around the ring every send but the first comes after a receive.
        """
        if self.ring.is_direct:
            return self._exchange(own, purpose)
        return self._pass_around(own, purpose)

    def _exchange(self, own: Frame, purpose: str) -> list[Frame]:
        rank, size, members = self.ring.rank, self.ring.size, self.ring.members
        message = message_of(own)
        for shift in range(1, size):
            self._send_to(members[(rank + shift) % size], message, purpose)
        frames = {rank: own}
        for shift in range(1, size):
            origin = (rank - shift) % size
            _, frames[origin] = self._receive_from(members[origin], own.kind, purpose)
            self.expect(frames[origin], "rank", origin, purpose=purpose, origin=origin)
        return [frames[member] for member in range(size)]

    def _pass_around(self, own: Frame, purpose: str) -> list[Frame]:
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

    def expect(
        self, frame: Frame, name: str, value: Scalar, *, purpose: str, origin: int | None = None
    ) -> None:
        """Raises ProtocolError unless a scalar of a frame has exactly this value.

        Args:
            origin: rank of a gathered frame; None: it is from the member before.
        """
        got = frame.scalars.get(name)
        if type(got) is not type(value) or got != value:
            raise self.fail(purpose, f"{name} {got!r}", repr(value), origin=origin)

    def fail(
        self, purpose: str, got: str, expected: str, *, origin: int | None = None
    ) -> ProtocolError:
        """The error for something wrong from another member; as `expect`."""
        giver = self._previous
        if origin is not None and self.ring.is_direct:
            giver = self.ring.members[origin]
        return ProtocolError(f"{purpose}: node {giver} sent {got}, expected {expected}")

    def _send_to(self, node: int, message: Message, purpose: str) -> None:
        self._transport.send(node, self._name, message, purpose=purpose)
        self.num_sent_bytes += len(message.header) + message.num_bytes

    def _await(self, node: int, kind: FrameKind, purpose: str) -> Message:
        if self._deadlines is None or kind is FrameKind.RING_HEADER:
            return self._transport.receive(node, self._name, purpose=purpose)
        key = (self.ring.ring_id, kind, node)
        began_s = time.monotonic()
        message = self._transport.receive(
            node, self._name, purpose=purpose, within_s=self._deadlines.of(key)
        )
        waited_s = time.monotonic() - began_s
        self.longest_waits[key] = max(waited_s, self.longest_waits.get(key, 0.0))
        return message

    def _receive_from(self, node: int, kind: FrameKind, purpose: str) -> tuple[Message, Frame]:
        message = self._await(node, kind, purpose)
        frame = decode(message.header, memoryview(message.payload[0]))
        if frame.kind is not kind:
            raise ProtocolError(
                f"{purpose}: node {node} sent {frame.kind.name}, expected {kind.name}"
            )
        origin = self.ring.members.index(node)
        self.expect(frame, "ring", self.ring.ring_id, purpose=purpose, origin=origin)
        return message, frame


def message_of(frame: Frame, codec: Codec = Codec.RAW) -> Message:
    """A frame as the transport takes it."""
    header, buffers = encode(frame, codec)
    return Message(header, tuple(buffers))
