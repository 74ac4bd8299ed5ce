"""Tensors that are read in place average as those that are copied first."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from averaging_harness import (
    assert_untouched,
    bytes_of,
    clones,
    membership,
    play,
    run_members,
    start_transports,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.averaging import Averager
from ravnest.averaging.schedule import Chunk
from ravnest.averaging.shadow import Shadow, segments_of
from ravnest.averaging.sources import Sources, is_read_in_place
from ravnest.errors import AveragingError
from ravnest.transport.interface import Transport

LARGE = 64 << 8  # elements of float32 that are just enough to be read in place


def tensors_of(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "small": torch.randn(3, generator=generator),
        "large": torch.randn(LARGE + 5, generator=generator),
        "strided": torch.randn(2, LARGE, generator=generator).t(),
        "half": torch.randn(2 * LARGE, generator=generator).half(),
        "square": torch.nn.Parameter(torch.randn(LARGE // 64, 64, generator=generator)),
        "counter": torch.full((4,), seed),
        "double": torch.randn(LARGE, generator=generator, dtype=torch.float64),
        "last": torch.randn(7, generator=generator),
    }


@settings(max_examples=60, deadline=None)
@given(cuts=st.sets(st.integers(1, 4 * LARGE), max_size=6), lazily=st.booleans())
def test_pieces_of_a_chunk_are_its_values_in_order(cuts: set[int], lazily: bool) -> None:
    tensors = tensors_of(0)
    segments = segments_of(tuple(tensors), tensors, {})
    whole, shadow = Shadow(), Shadow()
    whole.load(segments)
    later = [each for each in segments if lazily and is_read_in_place(each)]
    shadow.load(segments, later={each.name for each in later})
    sources = Sources(shadow.buffers, later)
    for number, expected in enumerate(whole.buffers):
        ends = sorted({0, expected.numel(), *(c for c in cuts if c < expected.numel())})
        for begin, stop in pairwise(ends):
            pieces = list(sources.of(Chunk(0, number, begin, stop)))
            assert torch.equal(torch.cat([piece for piece, _ in pieces]), expected[begin:stop])
            bounds = [0, *(place.stop for _, place in pieces)]
            assert [(place.start, place.stop) for _, place in pieces] == list(pairwise(bounds))


def test_what_is_read_in_place() -> None:
    tensors = tensors_of(0)
    segments = segments_of(tuple(tensors), tensors, {})
    names = {segment.name for segment in segments if is_read_in_place(segment)}
    assert names == {"large", "square", "double"}


@pytest.mark.parametrize("weights", [(1, 1), (3, 5), (0, 4), (7, 0)])
@pytest.mark.parametrize("chunk_bytes", [10_000, 1 << 20])
def test_the_mean_is_bitwise_that_of_a_round_with_copies(
    weights: tuple[int, int], chunk_bytes: int
) -> None:
    """`begin` copies everything, because training goes on; `average` does not."""

    def work(node: int, transport: Transport) -> list[dict[str, bytes]]:
        copied, in_place = tensors_of(node), tensors_of(node)
        ring = membership(node, [0, 1], list(copied))
        averager = Averager(node, [ring], transport, chunk_bytes=chunk_bytes)
        averager.begin(copied, round_id=0, num_samples=weights[node])
        averager.land(copied)
        averager.average(in_place, round_id=1, num_samples=weights[node], finished=False)
        return [{n: bytes_of(t) for n, t in each.items()} for each in (copied, in_place)]

    first, second = play([0, 1], work).values()
    assert first == second
    copied, in_place = first
    for name in copied:
        assert in_place[name] == copied[name], name


def test_a_refused_round_leaves_what_was_read_in_place() -> None:
    """All bytes have moved when the vote of a second ring refuses."""
    transports = start_transports([0, 1])
    before = {node: clones(tensors_of(node)) for node in (0, 1)}
    after: dict[int, dict[str, torch.Tensor]] = {}

    def work(node: int, transport: Transport) -> None:
        after[node] = tensors = tensors_of(node)
        names = [name for name in tensors if name != "last"]
        rings = [
            membership(node, [0, 1], names),
            membership(node, [0, 1], ["last"], ring_id=1),
        ]
        given_ = dict(tensors)
        if node == 0:
            del given_["last"]
        Averager(node, rings, transport).average(given_, round_id=0, num_samples=1, finished=False)

    outcomes = run_members(transports, work)
    for transport in transports.values():
        transport.close()
    assert all(isinstance(outcome, AveragingError) for outcome in outcomes.values()), outcomes
    for node in (0, 1):
        assert_untouched(after[node], before[node])
