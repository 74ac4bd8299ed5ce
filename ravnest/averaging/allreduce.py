"""Ring all-reduce of flat buffers: reduce-scatter, then all-gather, chunk by chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ravnest.averaging.lane import RingLane, message_of
from ravnest.averaging.schedule import Arrival, Chunk, Phase, arrivals, cut_into_shards
from ravnest.averaging.weighting import Weighting
from ravnest.transport.interface import Message
from ravnest.wire.codec import decode
from ravnest.wire.frame import Codec, Frame, FrameKind


@dataclass(frozen=True, slots=True)
class RingSettings:
    """How chunks travel; chunk size and codec have to be alike on all members.

    Attributes:
        chunk_bytes: largest chunk, in bytes of the accumulator dtype.
        codec: how float32 chunks are laid out on the wire; float64 and int64 travel as they are.
        window: messages that may be sent ahead of those received, at most the transport's window.
    """

    chunk_bytes: int
    codec: Codec
    window: int


class RingAllReduce:
    """One all-reduce over one ring, in the calling thread.

    Floating buffers end as the weighted mean, int64 buffers as the maximum. Every chunk's sum
    starts at one rank and grows rank by rank, its owner divides it, and what the owner sends (and,
    with a lossy codec, decodes from what it sent) is what every member stores: all members end
    with identical bytes.

    No copy is made to send: a chunk is sent from the buffer, and changes there only when its
    mean arrives, which cannot be before the next member has received what was sent; and the
    vote after the all-reduce shows that all means were received.

    Sending, receiving and adding overlap because a transport's `send` only queues. A member sends
    at most `window` messages ahead of what it has received. This never locks up: were all members
    blocked, take one that has received the fewest messages. It is not blocked sending, for the
    next member has consumed at least as many as it has itself, so less than a window is unconsumed.
    So it is blocked receiving, and the member before it, which has received no fewer, has sent no
    more than that: it holds nothing to send. It started with an empty shard, then, and has itself
    received the fewest. So it is around the whole ring: all shards are empty, and nobody receives.
    (Sends left over after a member's last receive wait for a member that still has to receive; it
    has something to receive, so it is blocked sending, to one that has received still less, and so
    on around to the first, which has received everything.)
    """

    def __init__(
        self,
        lane: RingLane,
        buffers: Sequence[torch.Tensor],
        weighting: Weighting,
        round_id: int,
        settings: RingSettings,
    ) -> None:
        self._lane = lane
        self._buffers = buffers
        self._weighting = weighting
        self._round_id = round_id
        self._settings = settings

    def run(self) -> None:
        """Reduces the buffers in place.

        Raises:
            ProtocolError: the member before sent something else than expected.
            TransportError: a neighbour has failed, gone or fallen silent.
        """
        ring, buffers = self._lane.ring, self._buffers
        most = [max(1, self._settings.chunk_bytes // b.element_size()) for b in buffers]
        shards = cut_into_shards([b.numel() for b in buffers], most, ring.size)
        self._num_chunks = sum(map(len, shards))
        unsent = deque(shards[ring.rank])
        outgoing: deque[tuple[Chunk, Phase, Message | None]] = deque()

        def send_one() -> None:
            if unsent:
                chunk = unsent.popleft()
                self._weigh(self._values(chunk))
                self._send(chunk, Phase.PARTIAL, None)
            else:
                self._send(*outgoing.popleft())

        num_ahead = 0
        for arrival in arrivals(shards, ring.rank):
            while (unsent or outgoing) and num_ahead < self._settings.window:
                send_one()
                num_ahead += 1
            message = self._receive(arrival)
            num_ahead -= 1
            if arrival.forward:
                phase = Phase.MEAN if arrival.completes else arrival.phase
                outgoing.append((arrival.chunk, phase, message))
        while unsent or outgoing:
            send_one()

    def _receive(self, arrival: Arrival) -> Message | None:
        """Takes in one chunk; returns what to pass on where that cannot be encoded anew."""
        chunk, values = arrival.chunk, self._values(arrival.chunk)
        message, frame = self._lane.receive(
            FrameKind.RING_CHUNK, purpose=self._purpose(chunk, arrival.phase)
        )
        got = self._checked(frame, arrival, values)
        if arrival.phase is Phase.MEAN:
            values.copy_(got)
            # Encoding a decoded chunk again might round it again: it is passed on as it came.
            return message if self._is_lossy(chunk) else None
        self._add(values, got)
        if not arrival.completes:
            return None
        if values.is_floating_point() and self._weighting.total != 1.0:
            values.div_(self._weighting.total)
        if not self._is_lossy(chunk):
            return None
        message = self._message(chunk, Phase.MEAN)
        payload = bytearray().join(message.payload)
        values.copy_(decode(message.header, memoryview(payload)).tensors["chunk"])
        return message

    def _send(self, chunk: Chunk, phase: Phase, message: Message | None) -> None:
        purpose = self._purpose(chunk, phase)
        self._lane.send(message or self._message(chunk, phase), purpose=purpose)

    def _message(self, chunk: Chunk, phase: Phase) -> Message:
        scalars = self._lane.scalars(round=self._round_id, phase=int(phase), chunk=chunk.number)
        del scalars["rank"]  # a mean is passed on as it came
        frame = Frame(FrameKind.RING_CHUNK, tensors={"chunk": self._values(chunk)}, scalars=scalars)
        return message_of(frame, self._settings.codec if self._is_lossy(chunk) else Codec.RAW)

    def _checked(self, frame: Frame, arrival: Arrival, values: torch.Tensor) -> torch.Tensor:
        purpose = self._purpose(arrival.chunk, arrival.phase)
        self._lane.expect(frame, "round", self._round_id, purpose=purpose)
        self._lane.expect(frame, "phase", int(arrival.phase), purpose=purpose)
        self._lane.expect(frame, "chunk", arrival.chunk.number, purpose=purpose)
        got = frame.tensors.get("chunk")
        if got is None or got.dtype != values.dtype or got.shape != values.shape:
            words = "no tensor" if got is None else f"{got.dtype} {tuple(got.shape)}"
            raise self._lane.fail(purpose, words, f"{values.dtype} {tuple(values.shape)}")
        return got

    def _weigh(self, values: torch.Tensor) -> None:
        if not values.is_floating_point():
            return
        if self._weighting.own == 0.0:
            values.zero_()  # not multiplied: no samples count as nothing even where they are NaN
        elif self._weighting.own != 1.0:
            values.mul_(self._weighting.own)

    def _add(self, values: torch.Tensor, partial: torch.Tensor) -> None:
        if not values.is_floating_point():
            torch.maximum(partial, values, out=values)
        elif self._weighting.own == 0.0:
            values.copy_(partial)
        else:
            torch.add(partial, values, alpha=self._weighting.own, out=values)

    def _values(self, chunk: Chunk) -> torch.Tensor:
        return self._buffers[chunk.buffer][chunk.start : chunk.stop]

    def _is_lossy(self, chunk: Chunk) -> bool:
        float32 = self._buffers[chunk.buffer].dtype is torch.float32
        return float32 and self._settings.codec is not Codec.RAW

    def _purpose(self, chunk: Chunk, phase: Phase) -> str:
        return (
            f"{phase.name.lower()} chunk {chunk.number + 1}/{self._num_chunks} of averaging round"
            f" {self._round_id} in ring {self._lane.ring.ring_id}"
        )
