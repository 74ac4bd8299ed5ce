"""Rounds that break in the middle: every live tensor stays as it was, and everybody raises."""

import gc
import threading
from collections.abc import Callable
from dataclasses import replace

import psutil
import pytest
import torch
from averaging_harness import (
    Tapped,
    assert_untouched,
    clones,
    kind_of,
    membership,
    pass_on,
    run_members,
    start_transports,
)

from ravnest.averaging import Averager, RoundResult
from ravnest.averaging.lane import message_of
from ravnest.errors import AveragingError, PeerFailedError, ProtocolError, TransportError
from ravnest.transport.interface import Message, Transport
from ravnest.wire.codec import decode
from ravnest.wire.frame import Frame, FrameKind

MALLOC_NOISE_BYTES = 32 << 20
"""How far the resident size wanders by itself; measured to be below half of it."""


class PowerCutError(Exception):
    """What the tests break a member with."""


def frame_of(message: Message) -> Frame:
    return decode(message.header, memoryview(bytearray().join(message.payload)))


def average(node: int, nodes: list[int], transport: Transport, live: torch.Tensor) -> RoundResult:
    averager = Averager(node, [membership(node, nodes, ["w"])], transport, chunk_bytes=64, window=2)
    return averager.average({"w": live}, round_id=9, num_samples=1 + node, finished=False)


class CutAt:
    """Breaks the sender at its n-th frame of a kind."""

    def __init__(self, kind: FrameKind, count: int) -> None:
        self._kind = kind
        self._left = count
        self.fired = False

    def __call__(self, _number: int, message: Message) -> Message:
        if kind_of(message) is self._kind:
            self._left -= 1
            if self._left == 0:
                self.fired = True
                raise PowerCutError("the plug was pulled")
        return message


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (FrameKind.RING_HEADER, 1),
        (FrameKind.RING_CHUNK, 1),
        (FrameKind.RING_CHUNK, 7),
        (FrameKind.RING_CHUNK, 18),
        (FrameKind.RING_VOTE, 1),
    ],
)
def test_a_member_that_dies_leaves_all_untouched(kind: FrameKind, count: int, size: int) -> None:
    nodes = list(range(size))
    live = {node: torch.full((400,), float(node)) for node in nodes}
    before = {node: live[node].clone() for node in nodes}
    cut = CutAt(kind, count)
    transports = {
        node: Tapped(transport, cut if node == 1 else pass_on)
        for node, transport in start_transports(nodes, window=2).items()
    }
    outcomes = run_members(transports, lambda n, t: average(n, nodes, t, live[n]))
    assert cut.fired
    for node in nodes:
        expected = PowerCutError if node == 1 else PeerFailedError
        assert type(outcomes[node]) is expected, outcomes
        assert_untouched({"w": live[node]}, {"w": before[node]})


def test_a_member_that_dies_in_one_ring_leaves_linked_rings_untouched() -> None:
    """Node 1 dies in ring 1, after the all-reduce of ring 0 has gone through."""
    rings = {0: (0, 1), 1: (1, 2)}
    live = {
        0: {"t0": torch.zeros(100)},
        1: {"t0": torch.ones(100), "t1": torch.ones(100)},
        2: {"t1": torch.zeros(100)},
    }
    before = {node: clones(tensors) for node, tensors in live.items()}
    cut = CutAt(FrameKind.RING_CHUNK, 3)  # each ring takes two chunks
    transports = {
        node: Tapped(transport, cut if node == 1 else pass_on)
        for node, transport in start_transports([0, 1, 2]).items()
    }

    def work(node: int, transport: Transport) -> RoundResult:
        mine = [
            membership(node, members, [f"t{ring_id}"], ring_id=ring_id)
            for ring_id, members in rings.items()
            if node in members
        ]
        averager = Averager(node, mine, transport)
        return averager.average(live[node], round_id=0, num_samples=1, finished=False)

    outcomes = run_members(transports, work)
    assert cut.fired
    assert all(isinstance(outcome, Exception) for outcome in outcomes.values())
    for node, tensors in live.items():
        assert_untouched(tensors, before[node])


def with_scalar(name: str, value: object) -> Callable[[Frame], Frame]:
    return lambda frame: replace(frame, scalars={**frame.scalars, name: value})


def with_chunk(make: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Frame], Frame]:
    return lambda frame: replace(frame, tensors={"chunk": make(frame.tensors["chunk"])})


HEADER, CHUNK, VOTE = FrameKind.RING_HEADER, FrameKind.RING_CHUNK, FrameKind.RING_VOTE
FORGERIES = {
    "chunk of another round": (CHUNK, with_scalar("round", 8), r"sent round 8, expected 9"),
    "chunk of another ring": (CHUNK, with_scalar("ring", 3), r"sent ring 3, expected 0"),
    "chunk number": (CHUNK, with_scalar("chunk", 99), r"sent chunk 99, expected \d+"),
    "chunk phase": (CHUNK, with_scalar("phase", 2), r"sent phase 2, expected 1"),
    "bool for a number": (CHUNK, with_scalar("phase", True), r"sent phase True, expected 1"),
    "chunk too long": (
        CHUNK,
        with_chunk(lambda t: torch.cat([t, t])),
        r"sent torch.float32 \(32,\), expected torch.float32 \(16,\)",
    ),
    "chunk dtype": (CHUNK, with_chunk(lambda t: t.double()), r"sent torch.float64 \(16,\), expect"),
    "no chunk": (CHUNK, lambda f: replace(f, tensors={}), r"sent no tensor, expected"),
    "another kind": (CHUNK, lambda f: replace(f, kind=VOTE), r"RING_VOTE, expected RING_CHUNK"),
    "header without samples": (
        HEADER,
        lambda f: replace(f, scalars={k: v for k, v in f.scalars.items() if k != "num_samples"}),
        r"sent num_samples None, expected int",
    ),
    "header with negative samples": (
        HEADER,
        with_scalar("num_samples", -4),
        r"sent num_samples -4, expected 0 or more",
    ),
    "header of another rank": (HEADER, with_scalar("rank", 0), r"sent rank 0, expected 1"),
    "vote of another round": (VOTE, with_scalar("round", 1), r"sent round 1, expected 9"),
    "vote without a word": (VOTE, with_scalar("ok", None), r"vote None with reason None"),
    "no without a reason": (VOTE, with_scalar("ok", False), r"vote False with reason None"),
}


@pytest.mark.parametrize("case", FORGERIES)
def test_anything_unexpected_is_refused_with_both_values(case: str) -> None:
    kind, forge, words = FORGERIES[case]
    nodes = [0, 1]
    live = {node: torch.full((64,), float(node)) for node in nodes}
    forged = []

    def tap(_number: int, message: Message) -> Message:
        if kind_of(message) is kind and not forged:
            forged.append(case)
            return message_of(forge(frame_of(message)))
        return message

    transports = {
        node: Tapped(transport, tap if node == 1 else pass_on)
        for node, transport in start_transports(nodes).items()
    }
    outcomes = run_members(transports, lambda n, t: average(n, nodes, t, live[n]))
    assert forged == [case]
    assert isinstance(outcomes[0], ProtocolError)
    with pytest.raises(ProtocolError, match=words):
        raise outcomes[0]
    assert (live[0] == 0.0).all()
    if kind is not VOTE:  # a forger may believe its own vote
        assert isinstance(outcomes[1], TransportError)
        assert (live[1] == 1.0).all()


def test_a_vote_against_is_raised_by_all() -> None:
    nodes = [0, 1, 2]
    live = {node: torch.full((64,), float(node)) for node in nodes}

    def against(_number: int, message: Message) -> Message:
        frame = frame_of(message)
        if frame.kind is VOTE and frame.scalars["rank"] == 1:
            refusal = {**frame.scalars, "ok": False, "reason": "disk full"}
            return message_of(replace(frame, scalars=refusal))
        return message

    transports = {
        node: Tapped(transport, against if node == 1 else pass_on)
        for node, transport in start_transports(nodes).items()
    }
    outcomes = run_members(transports, lambda n, t: average(n, nodes, t, live[n]))
    for node in (0, 2):
        assert type(outcomes[node]) is AveragingError
        assert "round 9 was not applied: disk full" in str(outcomes[node])
        assert (live[node] == float(node)).all()


def test_memory_and_threads_stay_flat_over_200_rounds_half_of_them_failed() -> None:
    process = psutil.Process()
    num_threads = threading.active_count()
    transports = start_transports([0, 1])
    averagers = {
        node: Averager(node, [membership(node, [0, 1], ["w"])], transport, chunk_bytes=1 << 16)
        for node, transport in transports.items()
    }
    live = {node: torch.full((250_000,), float(node)) for node in (0, 1)}
    resident: list[int] = []

    def work(node: int, _transport: Transport) -> int:
        num_failed = 0
        for round_id in range(200):
            fails = round_id % 2 == 1
            # Node 1 believes itself in the next round, which both have to notice.
            odd = round_id + 1 if fails and node == 1 else round_id
            try:
                averagers[node].average(
                    {"w": live[node]}, round_id=odd, num_samples=1, finished=False
                )
            except AveragingError:
                num_failed += 1
            if node == 0 and round_id in (49, 199):
                gc.collect()
                resident.append(process.memory_info().rss)
        return num_failed

    assert run_members(transports, work) == {0: 100, 1: 100}
    # Kept shadows would be 1 MB for each of 150 rounds and both members.
    assert resident[1] - resident[0] < MALLOC_NOISE_BYTES
    for transport in transports.values():
        transport.close()
    assert threading.active_count() == num_threads


def test_memory_and_threads_stay_flat_over_rounds_that_break_in_the_middle() -> None:
    process = psutil.Process()
    num_threads = threading.active_count()
    live = {node: torch.full((500_000,), float(node)) for node in (0, 1)}
    resident: list[int] = []
    for attempt in range(40):
        cut = CutAt(CHUNK, 100)
        transports = {
            node: Tapped(transport, cut if node == 1 else pass_on)
            for node, transport in start_transports([0, 1], window=2).items()
        }
        run_members(transports, lambda n, t: average_large(n, t, live[n]))
        assert cut.fired
        for transport in transports.values():
            transport.close()
        if attempt in (9, 39):
            gc.collect()
            resident.append(process.memory_info().rss)
    # Kept shadows would be 2 MB for each of 30 attempts and both members.
    assert resident[1] - resident[0] < MALLOC_NOISE_BYTES
    assert threading.active_count() == num_threads
    assert (live[0] == 0.0).all()
    assert (live[1] == 1.0).all()


def average_large(node: int, transport: Transport, live: torch.Tensor) -> RoundResult:
    ring = membership(node, [0, 1], ["w"])
    averager = Averager(node, [ring], transport, chunk_bytes=1 << 13, window=2)
    return averager.average({"w": live}, round_id=0, num_samples=1, finished=False)
