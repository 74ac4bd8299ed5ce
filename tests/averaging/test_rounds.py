"""Rounds as a whole: several rings, flags, rounds without samples, companions."""

import pytest
import torch
from averaging_harness import (
    Tapped,
    assert_untouched,
    clones,
    membership,
    pass_on,
    play,
)

from ravnest.averaging import Averager, RoundResult
from ravnest.errors import AveragingError
from ravnest.plan.parts import RingMembership
from ravnest.transport.interface import Transport
from ravnest.wire.frame import FrameKind

# A cluster of three stages (nodes 0, 1, 2) and one of two (nodes 3, 4), cut differently.
OWNERS = {"a": (0, 3), "b": (1, 3), "c": (1, 4), "d": (2, 4)}
NODES = (0, 1, 2, 3, 4)


def rings_of(node: int) -> list[RingMembership]:
    return [
        membership(node, members, [f"{name}.weight"], ring_id=ring_id, buffers=[f"{name}.count"])
        for ring_id, (name, members) in enumerate(OWNERS.items())
        if node in members
    ]


def tensors_of(node: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(node)
    tensors: dict[str, torch.Tensor] = {"not_averaged": torch.full((3,), float(node))}
    for name, members in OWNERS.items():
        if node in members:
            tensors[f"{name}.weight"] = torch.randn(7, 5, generator=generator)
            tensors[f"{name}.count"] = torch.tensor(node)
    return tensors


@pytest.mark.parametrize("window", [1, 16])
def test_clusters_cut_differently_average_over_four_rings(window: int) -> None:
    before = {node: tensors_of(node) for node in NODES}
    after = {node: clones(before[node]) for node in NODES}
    samples = {0: 30, 1: 30, 2: 30, 3: 10, 4: 10}

    def work(node: int, transport: Transport) -> RoundResult:
        # Walked in order of id, whatever the order they are given in.
        rings = rings_of(node)[:: -1 if node % 2 else 1]
        averager = Averager(node, rings, transport, chunk_bytes=16, window=window)
        return averager.average(
            after[node], round_id=0, num_samples=samples[node], finished=node != 4
        )

    results = play(NODES, work, window=window)
    for name, (left, right) in OWNERS.items():
        weight, count = f"{name}.weight", f"{name}.count"
        mean = (before[left][weight].double() * 30 + before[right][weight].double() * 10) / 40
        assert torch.equal(after[left][weight], after[right][weight])
        torch.testing.assert_close(after[left][weight].double(), mean, rtol=1e-6, atol=1e-7)
        assert after[left][count].item() == after[right][count].item() == right
    for node in NODES:
        assert torch.equal(after[node]["not_averaged"], before[node]["not_averaged"])
        assert results[node].num_samples == 40
        assert results[node].applied
        assert results[node].sent_bytes > 0
    # Node 4 goes on, and shares rings with nodes 1 and 2 only.
    assert [results[node].all_finished for node in NODES] == [True, False, False, True, False]


def test_rounds_go_on_until_all_are_finished() -> None:
    steps = {0: 3, 1: 1}

    def work(node: int, transport: Transport) -> list[tuple[int, bool]]:
        averager = Averager(node, [membership(node, [0, 1], ["w"])], transport)
        weight = torch.full((4,), float(node))
        history = []
        for round_id in range(10):
            finished = round_id + 1 >= steps[node]
            num_samples = 4 if round_id < steps[node] else 0
            result = averager.average(
                {"w": weight}, round_id=round_id, num_samples=num_samples, finished=finished
            )
            history.append((result.num_samples, result.all_finished))
            if result.all_finished:
                break
        return history

    histories = play([0, 1], work)
    assert histories[0] == histories[1] == [(8, False), (4, False), (4, True)]


def test_without_samples_nothing_moves() -> None:
    live = {node: {"w": torch.full((1000,), float(node))} for node in range(3)}
    taps: dict[int, Tapped] = {}

    def work(node: int, transport: Transport) -> RoundResult:
        taps[node] = Tapped(transport, pass_on)
        averager = Averager(node, [membership(node, [0, 1, 2], ["w"])], taps[node])
        return averager.average(live[node], round_id=0, num_samples=0, finished=True)

    for node, result in play([0, 1, 2], work).items():
        assert (result.applied, result.all_finished, result.num_samples) == (False, True, 0)
        assert FrameKind.RING_CHUNK not in taps[node].kinds
        assert (live[node]["w"] == node).all()


@pytest.mark.parametrize("finished", [True, False])
def test_a_ring_of_one_causes_no_traffic(finished: bool) -> None:
    def work(node: int, transport: Transport) -> RoundResult:
        tap = Tapped(transport, pass_on)
        weight = torch.ones(3)
        averager = Averager(node, [membership(node, [7], ["w"])], tap)
        result = averager.average({"w": weight}, round_id=0, num_samples=5, finished=finished)
        assert tap.kinds == []
        assert weight.tolist() == [1.0, 1.0, 1.0]
        return result

    result = play([7], work)[7]
    assert (result.applied, result.all_finished) == (False, finished)
    assert (result.num_samples, result.sent_bytes) == (5, 0)


def test_a_ring_without_tensors_still_agrees_on_the_end() -> None:
    def work(node: int, transport: Transport) -> RoundResult:
        averager = Averager(node, [membership(node, [0, 1], [])], transport)
        return averager.average({}, round_id=0, num_samples=1, finished=node == 0)

    assert not any(result.all_finished for result in play([0, 1], work).values())


def test_optimizer_state_follows_its_parameter() -> None:
    models = {node: torch.nn.Linear(3, 2) for node in (0, 1)}
    optimizers = {node: torch.optim.Adam(model.parameters()) for node, model in models.items()}
    for node, model in models.items():
        model(torch.randn(4, 3)).sum().backward()
        optimizers[node].step()
    names = ["weight", "bias"]

    def state_of(node: int) -> dict[str, dict[str, torch.Tensor]]:
        parameters = dict(models[node].named_parameters())
        return {name: dict(optimizers[node].state[parameters[name]]) for name in names}

    before = {node: {name: clones(state_of(node)[name]) for name in names} for node in models}

    def work(node: int, transport: Transport) -> RoundResult:
        averager = Averager(node, [membership(node, [0, 1], names)], transport)
        tensors = dict(models[node].named_parameters())
        return averager.average(
            tensors, round_id=0, num_samples=4, finished=False, companions=state_of(node)
        )

    play([0, 1], work)
    for name in names:
        for key in ("exp_avg", "exp_avg_sq", "step"):
            mean = (before[0][name][key] + before[1][name][key]) / 2
            assert torch.equal(state_of(0)[name][key], mean)
            assert torch.equal(state_of(1)[name][key], mean)
    assert torch.equal(models[0].weight, models[1].weight)


def test_memberships_that_contradict_each_other_are_refused() -> None:
    transport = Tapped.__new__(Tapped)  # never used: the constructor refuses first
    good = membership(1, [0, 1], ["w"])
    other = membership(1, [1, 2], ["w"], ring_id=1)
    with pytest.raises(AveragingError, match="'w' belongs to ring 0 and ring 1"):
        Averager(1, [good, other], transport)
    with pytest.raises(AveragingError, match="rank 1 for node 0"):
        Averager(0, [good], transport)
    with pytest.raises(AveragingError, match="chunk_bytes is 0"):
        Averager(1, [good], transport, chunk_bytes=0)
    with pytest.raises(AveragingError, match="ring ids are"):
        Averager(1, [good, membership(1, [0, 1], ["v"])], transport)


def test_negative_counts_are_refused_before_anything_is_sent() -> None:
    weight = {"w": torch.ones(2)}

    def work(node: int, transport: Transport) -> None:
        tap = Tapped(transport, pass_on)
        averager = Averager(node, [membership(node, [0, 1], ["w"])], tap)
        with pytest.raises(AveragingError, match="num_samples -1"):
            averager.average(weight, round_id=0, num_samples=-1, finished=False)
        assert tap.kinds == []

    play([0], work)
    assert_untouched(weight, {"w": torch.ones(2)})
