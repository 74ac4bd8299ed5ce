"""Which chunk travels when: the order of a ring all-reduce as data. Knows no tensor and no peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

CHUNKS_PER_SHARD = 4
MIN_CHUNK_BYTES = 256 << 10


class Phase(IntEnum):
    """What a chunk on its way holds."""

    PARTIAL = 1
    """A sum over some members, in reduce-scatter."""
    MEAN = 2
    """The result, in all-gather."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of one flat buffer, small enough to be one message.

    Attributes:
        number: position among all chunks of the ring, the same on every member.
        buffer: position of the flat buffer.
        start: first element.
        stop: element after the last one.
    """

    number: int
    buffer: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """A chunk that a member receives, and what becomes of it.

    Attributes:
        phase: what arrives: a partial sum to add to, or the mean.
        completes: the sum is complete with this member's addition; it owns the mean.
        forward: it goes on to the next member (as mean when `completes`).
    """

    chunk: Chunk
    phase: Phase
    completes: bool
    forward: bool


def chunk_length(length: int, element_bytes: int, size: int, most_bytes: int) -> int:
    """Elements of a chunk of one flat buffer, the same on every member.

    A shard in several chunks keeps every link busy: while one is added up, another travels. More
    only cost processor time.

    Args:
        length: elements of the buffer.
        element_bytes: of one of them.
        size: members of the ring.
        most_bytes: of a chunk.
    """
    wanted_bytes = length * element_bytes // size // CHUNKS_PER_SHARD
    return max(1, min(most_bytes, max(wanted_bytes, MIN_CHUNK_BYTES)) // element_bytes)


def cut_into_shards(
    lengths: Sequence[int], chunk_lengths: Sequence[int], size: int
) -> tuple[tuple[Chunk, ...], ...]:
    """Cuts flat buffers into one shard per member, and each shard into chunks.

    Shard s takes elements `s * n // size` to `(s + 1) * n // size` of every buffer, so shards
    differ by at most one element per buffer; they may be empty.

    Args:
        lengths: elements of each buffer.
        chunk_lengths: most elements of a chunk of that buffer, at least 1.
        size: members of the ring.
    """
    shards: list[tuple[Chunk, ...]] = []
    number = 0
    for shard in range(size):
        chunks: list[Chunk] = []
        for buffer, (length, most) in enumerate(zip(lengths, chunk_lengths, strict=True)):
            end = (shard + 1) * length // size
            for start in range(shard * length // size, end, most):
                chunks.append(Chunk(number, buffer, start, min(start + most, end)))
                number += 1
        shards.append(tuple(chunks))
    return tuple(shards)


def arrivals(shards: Sequence[Sequence[Chunk]], rank: int) -> tuple[Arrival, ...]:
    """What a member receives, in order: reduce-scatter, then all-gather.

    In step s a member passes on what it received in step s - 1 and starts with its own shard, so
    the order in which it sends is: its own shard, then every arrival with `forward`. Each shard's
    sum therefore starts at the member of the same rank and grows rank by rank: the order of
    additions depends on nothing but the ranks (Patarasuk & Yuan 2009, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations").
    """
    size = len(shards)
    steps = size - 1
    order: list[Arrival] = []
    for step in range(steps):
        owned = step == steps - 1
        for chunk in shards[(rank - 1 - step) % size]:
            order.append(Arrival(chunk, Phase.PARTIAL, completes=owned, forward=True))
    for step in range(steps):
        for chunk in shards[(rank - step) % size]:
            order.append(Arrival(chunk, Phase.MEAN, completes=False, forward=step < steps - 1))
    return tuple(order)
