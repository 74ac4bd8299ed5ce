"""Rounds whose tensors change while their messages come and go."""

from __future__ import annotations

import pytest
import torch
from averaging_harness import (
    Tapped,
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
from ravnest.averaging.outer import OuterOptimizer
from ravnest.errors import AveragingError, PeerFailedError
from ravnest.stage.outer import parse_outer
from ravnest.transport.interface import Message, Transport

Tensors = dict[str, torch.Tensor]
KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.int16,
         torch.uint8]  # fmt: skip
SHAPES = [(), (0,), (7,), (3, 5)]


def start(value: int) -> Tensors:
    tensors = {
        f"{dtype} {shape}": torch.full(shape, value, dtype=dtype)
        for dtype in KINDS
        for shape in SHAPES
    }
    return tensors | {"bool": torch.tensor([False, bool(value % 2), True])}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=5).filter(any),
    st.sampled_from([None, "sgd"]),
)
def test_what_changed_meanwhile_is_added_to_the_result(
    weights: list[int], optimizer: str | None
) -> None:
    """Small integers, so that every dtype adds them exactly."""
    nodes = list(range(len(weights)))
    total = sum(weights)

    def work(node: int, transport: Transport) -> Tensors:
        live = start(0)
        chosen = parse_outer(optimizer, None)
        floating = {k: v for k, v in live.items() if v.is_floating_point() or v.is_complex()}
        outer = None if chosen is None else OuterOptimizer(chosen, floating)
        averager = Averager(node, [membership(node, nodes, list(live))], transport, outer=outer)
        trained = start(total * node)
        for name in live:
            live[name].copy_(trained[name])
        averager.begin(live, round_id=0, num_samples=weights[node])
        moved = {name: tensor.clone() for name, tensor in live.items()}  # in other storage
        for name, tensor in moved.items():
            if name != "bool":
                tensor.add_(node + 1)
        result = averager.land(moved)
        assert result.applied
        assert result.duration_s > 0
        return moved

    found = play(nodes, work)
    mean = sum(weight * node for node, weight in zip(nodes, weights, strict=True))
    for node, tensors in found.items():
        for name, tensor in tensors.items():
            if name == "bool":
                assert tensor.tolist() == [False, any((total * n) % 2 for n in nodes), True]
                continue
            is_counter = not (tensor.is_floating_point() or tensor.is_complex())
            common = total * nodes[-1] if is_counter else mean
            expected = torch.full_like(tensor, common) + (node + 1)
            torch.testing.assert_close(tensor, expected, rtol=2.0**-6, atol=0)


def test_where_nothing_changed_it_is_the_round_that_training_waits_for() -> None:
    nodes = [0, 1, 2]
    generator = torch.Generator().manual_seed(0)
    given = {node: {"w": torch.randn(501, generator=generator)} for node in nodes}

    def work(node: int, transport: Transport) -> list[bytes]:
        found = []
        averager = Averager(node, [membership(node, nodes, ["w"])], transport, chunk_bytes=128)
        for round_id in range(2):
            live = clones(given[node])
            if (round_id + node) % 2:  # members of either kind meet in a round
                averager.begin(live, round_id=round_id, num_samples=3 + node)
                averager.land(live)
            else:
                averager.average(live, round_id=round_id, num_samples=3 + node, finished=False)
            found.append(bytes_of(live["w"]))
        return found

    assert len({each for found in play(nodes, work).values() for each in found}) == 1


def test_a_round_that_breaks_in_flight_is_raised_where_it_lands() -> None:
    class PowerCutError(Exception):
        pass

    def cut(number: int, message: Message) -> Message:
        if number == 3:
            raise PowerCutError
        return message

    live = {node: {"w": torch.full((300,), float(node))} for node in (0, 1)}
    before = {node: clones(tensors) for node, tensors in live.items()}

    def work(node: int, transport: Transport) -> None:
        ring = membership(node, [0, 1], ["w"])
        averager = Averager(node, [ring], transport, chunk_bytes=64, window=2)
        averager.begin(live[node], round_id=0, num_samples=1)
        averager.land(live[node])

    transports = start_transports([0, 1])
    transports[1] = Tapped(transports[1], cut)
    outcomes = run_members(transports, work)
    assert isinstance(outcomes[0], PeerFailedError)
    assert isinstance(outcomes[1], PowerCutError)
    for node, tensors in live.items():
        assert_untouched(tensors, before[node])


def test_a_tensor_that_is_gone_when_the_round_lands_is_named() -> None:
    def work(node: int, transport: Transport) -> None:
        averager = Averager(node, [membership(node, [0, 1], ["a", "w"])], transport)
        live = {"a": torch.zeros(3), "w": torch.zeros(3)}
        averager.begin(live, round_id=0, num_samples=1)
        with pytest.raises(AveragingError, match=r"'w' was float32 \(3,\) .* float32 \(4,\) now"):
            averager.land({"a": live["a"], "w": torch.zeros(4)})

    play([0, 1], work)


def test_members_with_other_fragments_are_refused_with_both() -> None:
    def work(node: int, transport: Transport) -> None:
        ring = membership(node, [0, 1], ["a", "w"])
        averager = Averager(node, [ring], transport, num_fragments=2 + node)
        live = {"a": torch.zeros(3), "w": torch.zeros(3)}
        with pytest.raises(AveragingError, match=r"'\(fragment\)': .* 1 of 2, .* 1 of 3"):
            averager.average(live, round_id=0, num_samples=1, finished=False)

    play([0, 1], work)


@pytest.mark.parametrize("num_fragments", [1, 2, 5])
def test_rounds_walk_the_fragments_in_turn(num_fragments: int) -> None:
    names = [f"w{i}" for i in range(5)]

    def work(node: int, transport: Transport) -> list[list[str]]:
        ring = membership(node, [0, 1], names)
        averager = Averager(node, [ring], transport, num_fragments=num_fragments)
        live = {name: torch.zeros(4) for name in names}
        touched = []
        for round_id in range(num_fragments):
            for tensor in live.values():
                tensor.fill_(float(node))
            averager.average(live, round_id=round_id, num_samples=1, finished=False)
            touched.append([name for name, tensor in live.items() if (tensor == 0.5).all()])
        return touched

    for touched in play([0, 1], work).values():
        assert sorted(name for each in touched for name in each) == names
        assert all(touched)
