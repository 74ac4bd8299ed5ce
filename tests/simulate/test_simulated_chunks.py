"""Simulated rounds cut shards as real ones do."""

from __future__ import annotations

import pytest

from ravnest.averaging.averager import CHUNK_BYTES
from ravnest.averaging.schedule import chunk_length
from ravnest.simulate.rounds import RingLink


@pytest.mark.parametrize("shard_bytes", [1 << 10, 300 << 10, 1 << 20, 10 << 20, 100 << 20])
def test_chunks_are_those_of_the_all_reduce(shard_bytes: int) -> None:
    """Which the simulator may not import: it sees no network."""
    members = 4
    hops = 2 * (members - 1)
    link = RingLink(0, 1, shard_bytes * hops, seconds=10.0, latency_s=0.0)
    length = chunk_length(shard_bytes * members // 4, 4, members, CHUNK_BYTES)
    share = min(4 * length, shard_bytes) / (shard_bytes * hops)
    assert link.chunk_s(hops) == pytest.approx(10.0 * share)
