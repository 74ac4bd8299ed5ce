from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from ravnest.averaging.schedule import (
    CHUNKS_PER_SHARD,
    MIN_CHUNK_BYTES,
    Arrival,
    Chunk,
    Phase,
    arrivals,
    chunk_length,
    cut_into_shards,
)

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=3)


@given(lengths, st.integers(1, 9), st.integers(1, 6))
def test_shards_cover_every_element_once(sizes: list[int], most: int, size: int) -> None:
    shards = cut_into_shards(sizes, [most] * len(sizes), size)
    assert len(shards) == size
    covered = [
        (chunk.buffer, element)
        for shard in shards
        for chunk in shard
        for element in range(chunk.start, chunk.stop)
    ]
    expected = [(buffer, element) for buffer, n in enumerate(sizes) for element in range(n)]
    assert sorted(covered) == expected
    assert all(0 < c.stop - c.start <= most for shard in shards for c in shard)
    assert [c.number for shard in shards for c in shard] == list(range(sum(map(len, shards))))


@given(
    st.integers(0, 1 << 28), st.sampled_from([4, 8]), st.integers(2, 64), st.integers(1, 8 << 20)
)
def test_chunks_are_neither_too_large_nor_needlessly_many(length, element_bytes, size, most_bytes):
    chunk_bytes = chunk_length(length, element_bytes, size, most_bytes) * element_bytes
    assert element_bytes <= chunk_bytes <= max(most_bytes, element_bytes)
    shard_bytes = length * element_bytes // size
    if MIN_CHUNK_BYTES * CHUNKS_PER_SHARD <= shard_bytes <= most_bytes * CHUNKS_PER_SHARD:
        # What is left over of dividing may make one more.
        assert shard_bytes // chunk_bytes in (CHUNKS_PER_SHARD, CHUNKS_PER_SHARD + 1)


@given(lengths, st.integers(1, 9), st.integers(2, 6))
def test_every_sum_takes_each_rank_once_in_order(sizes: list[int], most: int, size: int) -> None:
    """Plays the messages with lists of ranks as values, in the order they are sent."""
    shards = cut_into_shards(sizes, [most] * len(sizes), size)
    orders = [deque(arrivals(shards, rank)) for rank in range(size)]
    held: list[dict[Chunk, tuple[int, ...]]] = [
        {chunk: (rank,) for shard in shards for chunk in shard} for rank in range(size)
    ]
    lanes: list[deque[tuple[Chunk, Phase, tuple[int, ...]]]] = [deque() for _ in range(size)]
    for rank in range(size):  # lane r leads from r to r + 1
        lanes[rank].extend((chunk, Phase.PARTIAL, (rank,)) for chunk in shards[rank])
    while any(lanes):
        for rank in range(size):
            if lanes[rank - 1]:
                chunk, phase, value = lanes[rank - 1].popleft()
                arrival: Arrival = orders[rank].popleft()
                assert (arrival.chunk, arrival.phase) == (chunk, phase)
                held[rank][chunk] = value if phase is Phase.MEAN else (*value, rank)
                sent_as = Phase.MEAN if arrival.completes else phase
                if arrival.forward:
                    lanes[rank].append((chunk, sent_as, held[rank][chunk]))
    assert not any(orders)
    for first, shard in enumerate(shards):
        ranks = tuple((first + step) % size for step in range(size))
        assert all(held[rank][chunk] == ranks for rank in range(size) for chunk in shard)
