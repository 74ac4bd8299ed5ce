"""Ring all-reduce of flat buffers: reduce-scatter, then all-gather, chunk by chunk."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch

from ravnest.averaging.feedback import Feedback
from ravnest.averaging.lane import RingLane, message_of
from ravnest.averaging.schedule import (
    Arrival,
    Chunk,
    Phase,
    arrivals,
    chunk_length,
    cut_into_shards,
)
from ravnest.averaging.shadow import CHANGE
from ravnest.averaging.sources import Sources
from ravnest.averaging.weighting import Weighting
from ravnest.transport.interface import Message
from ravnest.wire.codec import decode
from ravnest.wire.frame import Codec, Frame, FrameKind


@dataclass(frozen=True, slots=True)
class RingSettings:
    """How chunks travel; chunk size and codec have to be alike on all members.

    Attributes:
        chunk_bytes: largest chunk, in bytes of the accumulator dtype.
        codec: how float32 chunks are laid out on the wire, with error feedback those of changes
            alone; float64 and int64 travel as they are.
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

    Sending, receiving and adding overlap because a transport's `send` only queues. Until a member
    has received everything, it has sent less than `window` messages more than it received when it
    sends the next. Once all members are in the all-reduce, that cannot lock up:

    - If a member waits for a message, it has consumed all that the member before sent. So that
      one is not blocked sending: it waits as well and has nothing to pass on; and so on around the
      ring. Then every chunk has been passed on to the end of its way, and nobody waits.
    - Else all members that are not done are blocked sending. The next member of each has
      messages to consume, so it is not done, and none has received everything. Each is less
      than a window ahead of what it received, and the next has not consumed a window of that:
      the next has received fewer messages, all around the ring, which cannot be.
    """

    def __init__(
        self,
        lane: RingLane,
        sources: Sources,
        weighting: Weighting,
        round_id: int,
        settings: RingSettings,
        feedback: Feedback | None = None,
    ) -> None:
        self._lane = lane
        self._sources = sources
        self._buffers = buffers = sources.buffers
        self._weighting = weighting
        self._round_id = round_id
        self._settings = settings
        self._feedback = feedback
        if feedback is not None:
            feedback.begin(buffers[CHANGE].numel())
        size = lane.ring.size
        most = [
            chunk_length(b.numel(), b.element_size(), size, settings.chunk_bytes) for b in buffers
        ]
        self._shards = cut_into_shards([b.numel() for b in buffers], most, size)
        self._num_chunks = sum(map(len, self._shards))
        self._unsent = deque(self._shards[lane.ring.rank])
        self._outgoing: deque[tuple[Chunk, Phase, Message | None]] = deque()

    def run(self) -> None:
        """Reduces the buffers in place.

        Raises:
            ProtocolError: the member before sent something else than expected.
            TransportError: a neighbour has failed, gone or fallen silent.
        """
        num_ahead = 0
        for arrival in arrivals(self._shards, self._lane.ring.rank):
            while num_ahead < self._settings.window and self._send_next():
                num_ahead += 1
            message = self._receive(arrival)
            num_ahead -= 1
            if arrival.forward:
                phase = Phase.MEAN if arrival.completes else arrival.phase
                self._outgoing.append((arrival.chunk, phase, message))
        while self._send_next():
            pass

    def _send_next(self) -> bool:
        """Sends the next chunk, the own shard's first; false when there is none to send now."""
        if self._unsent:
            chunk = self._unsent.popleft()
            self._weigh(chunk)
            self._add_kept(chunk)
            self._send(chunk, Phase.PARTIAL, None)
        elif self._outgoing:
            self._send(*self._outgoing.popleft())
        else:
            return False
        return True

    def _receive(self, arrival: Arrival) -> Message | None:
        """Takes in one chunk; returns what to pass on, None where it has yet to be encoded."""
        chunk, values = arrival.chunk, self._values(arrival.chunk)
        message, frame = self._lane.receive(
            FrameKind.RING_CHUNK, purpose=self._purpose(chunk, arrival.phase)
        )
        got = self._checked(frame, arrival, values)
        if arrival.phase is Phase.MEAN:
            values.copy_(got)
            # Passed on as it came: encoding it again would take time, and might round it again.
            return message if arrival.forward else None
        self._add(chunk, got)
        self._add_kept(chunk)
        if not arrival.completes:
            return None
        if values.is_floating_point() and self._weighting.total != 1.0:
            values.div_(self._weighting.total)
        return self._message(chunk, Phase.MEAN) if self._is_lossy(chunk) else None

    def _send(self, chunk: Chunk, phase: Phase, message: Message | None) -> None:
        purpose = self._purpose(chunk, phase)
        self._lane.send(message or self._message(chunk, phase), purpose=purpose)

    def _message(self, chunk: Chunk, phase: Phase) -> Message:
        scalars = self._lane.scalars(round=self._round_id, phase=int(phase), chunk=chunk.number)
        del scalars["rank"]  # a mean is passed on as it came
        values, is_lossy = self._values(chunk), self._is_lossy(chunk)
        frame = Frame(FrameKind.RING_CHUNK, tensors={"chunk": values}, scalars=scalars)
        message = message_of(frame, self._settings.codec if is_lossy else Codec.RAW)
        if is_lossy:
            self._read_back(chunk, phase, values, message)
        return message

    def _read_back(
        self, chunk: Chunk, phase: Phase, values: torch.Tensor, message: Message
    ) -> None:
        """What the others will decode: an owner, too, stores that, and its error is kept."""
        if phase is Phase.PARTIAL and self._feedback is None:
            return
        payload = bytearray().join(message.payload)
        decoded = decode(message.header, memoryview(payload)).tensors["chunk"]
        if self._feedback is not None:
            total = self._weighting.total if phase is Phase.PARTIAL else 1.0
            self._feedback.keep(chunk.start, values, decoded, total)
        if phase is Phase.MEAN:
            values.copy_(decoded)

    def _add_kept(self, chunk: Chunk) -> None:
        if self._feedback is not None and self._is_lossy(chunk):
            self._feedback.add(chunk.start, self._values(chunk), self._weighting.total)

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

    def _weigh(self, chunk: Chunk) -> None:
        values, own = self._values(chunk), self._weighting.own
        if not values.is_floating_point():
            return
        if own == 0.0:
            values.zero_()  # not multiplied: no samples count as nothing even where they are NaN
            return
        for piece, place in self._sources.of(chunk):
            torch.mul(piece, own, out=values[place])

    def _add(self, chunk: Chunk, partial: torch.Tensor) -> None:
        values, own = self._values(chunk), self._weighting.own
        if not values.is_floating_point():
            torch.maximum(partial, values, out=values)
        elif own == 0.0:
            values.copy_(partial)
        else:
            for piece, place in self._sources.of(chunk):
                torch.add(partial[place], piece, alpha=own, out=values[place])

    def _values(self, chunk: Chunk) -> torch.Tensor:
        return self._buffers[chunk.buffer][chunk.start : chunk.stop]

    def _is_lossy(self, chunk: Chunk) -> bool:
        if self._feedback is not None:
            return chunk.buffer == CHANGE
        float32 = self._buffers[chunk.buffer].dtype is torch.float32
        return float32 and self._settings.codec is not Codec.RAW

    def _purpose(self, chunk: Chunk, phase: Phase) -> str:
        return (
            f"{phase.name.lower()} chunk {chunk.number + 1}/{self._num_chunks} of averaging round"
            f" {self._round_id} in ring {self._lane.ring.ring_id}"
        )
