"""Rounds with an outer optimizer, against one process that simulates all members."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from averaging_harness import (
    Tapped,
    assert_untouched,
    bytes_of,
    clones,
    membership,
    pass_on,
    play,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.averaging import Averager
from ravnest.averaging.outer import OuterOptimizer
from ravnest.errors import AveragingError, ConfigError
from ravnest.stage.outer import OuterSGD, parse_outer
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Codec, FrameKind

Tensors = dict[str, torch.Tensor]
# Of two steps along means of normal numbers, up to 8 members that round one after another.
ROUNDING = {
    Codec.RAW: 1e-5,
    Codec.FLOAT16: 0.02,
    Codec.BFLOAT16: 0.1,
    Codec.INT8: 0.15,
    Codec.INT8_HUFFMAN: 0.15,
    Codec.INT4: 3.0,
    Codec.INT4_HADAMARD: 3.0,
}
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64]


def outer_of(tensors: Tensors, optimizer: Any = "nesterov", **params: Any) -> OuterOptimizer:
    chosen = parse_outer(optimizer, params)
    assert chosen is not None
    return OuterOptimizer(chosen, tensors)


class Member:
    """One member over several rounds, with its own drift between them."""

    def __init__(
        self, node: int, nodes: list[int], transport: Transport, start: Tensors, **options: Any
    ) -> None:
        self.live = clones(start)
        optimizer, params = options.pop("optimizer", "nesterov"), options.pop("params", {})
        buffers = options.pop("buffers", ())
        parameters = [name for name in start if name not in buffers]
        ring = membership(node, nodes, parameters, buffers=buffers)
        self.outer = outer_of({name: start[name] for name in parameters}, optimizer, **params)
        self.averager = Averager(node, [ring], transport, outer=self.outer, **options)

    def drift(self, changes: Tensors) -> None:
        for name, change in changes.items():
            self.live[name].add_(change)

    def average(self, round_id: int, num_samples: int) -> int:
        result = self.averager.average(
            self.live, round_id=round_id, num_samples=num_samples, finished=False
        )
        return result.sent_bytes


def drifts(
    nodes: list[int], start: Tensors, num_rounds: int, seed: int
) -> list[dict[int, Tensors]]:
    generator = torch.Generator().manual_seed(seed)

    def draw(tensor: torch.Tensor) -> torch.Tensor:
        wide = torch.complex128 if tensor.is_complex() else torch.float64
        return torch.randn(tensor.shape, dtype=wide, generator=generator).to(tensor.dtype)

    return [
        {node: {name: draw(tensor) for name, tensor in start.items()} for node in nodes}
        for _ in range(num_rounds)
    ]


def simulate(
    start: Tensors,
    rounds: list[dict[int, Tensors]],
    weights: list[int],
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
) -> Tensors:
    """The same in one process and float64: torch's own optimizer on the workers' mean change."""
    wide = {
        name: torch.nn.Parameter(t.to(torch.complex128 if t.is_complex() else torch.float64))
        for name, t in start.items()
    }
    optimizer = make(list(wide.values()))
    total = sum(weights)
    for changes in rounds:
        for name, parameter in wide.items():
            before = parameter.detach().to(start[name].dtype)
            gradient = torch.zeros_like(parameter)
            for weight, member in zip(weights, changes.values(), strict=True):
                local = before + member[name]
                gradient -= (weight / total) * (local.to(parameter.dtype) - before)
            parameter.grad = gradient
        optimizer.step()
    return {name: parameter.detach() for name, parameter in wide.items()}


def train(
    start: Tensors, rounds: list[dict[int, Tensors]], weights: list[int], **options: Any
) -> dict[int, Member]:
    nodes = list(rounds[0])
    window = options.get("window", 16)

    def work(node: int, transport: Transport) -> Member:
        member = Member(node, nodes, transport, start, **options)
        for round_id, changes in enumerate(rounds):
            member.drift(changes[node])
            member.average(round_id, weights[nodes.index(node)])
        return member

    return play(nodes, work, window=window)


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": ("sgd", {}, lambda p: torch.optim.SGD(p, lr=1.0)),
    "nesterov": (
        "nesterov",
        {},
        lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True),
    ),
    "slower": (
        "nesterov",
        {"lr": 0.3, "nesterov": False},
        lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
    ),
    "a class": (torch.optim.Adam, {"lr": 0.1}, lambda p: torch.optim.Adam(p, lr=0.1)),
    "a function": (
        lambda p, rate: torch.optim.SGD(p, lr=rate),
        {"rate": 0.5},
        lambda p: torch.optim.SGD(p, lr=0.5),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_members_get_what_one_process_computes(name: str) -> None:
    optimizer, params, make = OPTIMIZERS[name]
    nodes, weights = [3, 1, 4], [8, 24, 16]
    start = {"w": torch.randn(37, 5), "scalar": torch.tensor(2.0), "empty": torch.zeros(0, 3)}
    rounds = drifts(nodes, start, 5, seed=0)
    members = train(start, rounds, weights, optimizer=optimizer, params=params, chunk_bytes=64)
    expected = simulate(start, rounds, weights, make)
    for key in start:
        assert len({bytes_of(member.live[key]) for member in members.values()}) == 1
        assert len({bytes_of(member.outer.anchors[key]) for member in members.values()}) == 1
        got = members[3].live[key].double()
        torch.testing.assert_close(got, expected[key], rtol=2e-6, atol=2e-6)
        states = [member.outer.state_of(key) for member in members.values()]
        for kept in states[0]:
            assert len({bytes_of(state[kept]) for state in states}) == 1


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.integers(0, 300), min_size=1, max_size=8).filter(any),
    kinds=st.lists(
        st.tuples(st.sampled_from(FLOATS), st.lists(st.integers(0, 5), max_size=3).map(tuple)),
        min_size=1,
        max_size=5,
    ),
    codec=st.sampled_from(list(Codec)),
    window=st.integers(1, 4),
    chunk_bytes=st.integers(1, 400),
    seed=st.integers(0, 2**31),
)
def test_all_members_hold_identical_bytes_close_to_the_oracle(
    weights: list[int],
    kinds: list[tuple[torch.dtype, tuple[int, ...]]],
    codec: Codec,
    window: int,
    chunk_bytes: int,
    seed: int,
) -> None:
    nodes = [7 * (rank + 1) for rank in range(len(weights))]
    start: Tensors = {f"t{i}": torch.ones(shape, dtype=d) for i, (d, shape) in enumerate(kinds)}
    rounds = drifts(nodes, start, 2, seed)
    options = {"codec": codec, "window": window, "chunk_bytes": chunk_bytes}
    members = train(start, rounds, weights, **options)
    expected = simulate(start, rounds, weights, OPTIMIZERS["nesterov"][2])
    for name, tensor in start.items():
        assert len({bytes_of(member.live[name]) for member in members.values()}) == 1
        assert len({bytes_of(member.outer.anchors[name]) for member in members.values()}) == 1
        if len(nodes) == 1:
            continue  # nothing to average with: no round moves anything
        lossless = tensor.dtype is torch.float64
        rounding = torch.finfo(tensor.dtype).eps
        bound = 40 * rounding + (1e-5 if lossless else ROUNDING[codec])
        got = members[nodes[0]].live[name].to(expected[name].dtype)
        assert ((got - expected[name]).abs() <= bound).all()


def test_rate_1_without_momentum_is_the_plain_mean() -> None:
    nodes, weights = [0, 1, 2], [3, 5, 7]
    start = {"w": torch.randn(301), "half": torch.randn(64).to(torch.bfloat16)}
    rounds = drifts(nodes, start, 1, seed=1)
    members = train(start, rounds, weights, optimizer="sgd")
    plain = {node: clones(start) for node in nodes}
    for node in nodes:
        for name in start:
            plain[node][name].add_(rounds[0][node][name])

    def work(node: int, transport: Transport) -> None:
        ring = membership(node, nodes, list(start))
        Averager(node, [ring], transport).average(
            plain[node], round_id=0, num_samples=weights[node], finished=False
        )

    play(nodes, work)
    torch.testing.assert_close(members[0].live["w"], plain[0]["w"], rtol=1e-6, atol=1e-6)
    half = members[0].live["half"].float() - plain[0]["half"].float()
    assert half.abs().max() <= 2.0**-7 * plain[0]["half"].float().abs().max()


def test_buffers_are_averaged_as_without_an_outer_optimizer() -> None:
    nodes = [0, 1]
    start = {"w": torch.zeros(4), "mean": torch.zeros(3), "count": torch.tensor(0)}

    def work(node: int, transport: Transport) -> Member:
        member = Member(node, nodes, transport, start, buffers=("mean", "count"), codec=Codec.INT8)
        member.live["mean"].add_(1 / 3 + node)
        member.live["count"].add_(5 + node)
        member.average(0, 1)
        return member

    members = play(nodes, work)
    for member in members.values():
        assert member.live["count"].item() == 6
        expected = (torch.tensor(1 / 3) + torch.tensor(4 / 3)) / 2
        assert (member.live["mean"] == expected).all()  # never rounded


def test_a_narrow_parameter_keeps_a_wide_anchor() -> None:
    """Steps below the rounding of bfloat16 add up."""
    nodes = [0, 1]
    start = {"w": torch.ones(8, dtype=torch.bfloat16)}
    tiny = {"w": torch.full((8,), 2.0**-7, dtype=torch.bfloat16)}
    rounds = [dict.fromkeys(nodes, tiny) for _ in range(8)]
    params = {"lr": 2.0**-3}
    members = train(start, rounds, [1, 1], optimizer="sgd", params=params)
    assert (members[0].live["w"].float() == 1 + 2.0**-7).all()


@pytest.mark.parametrize("codec", [each for each in Codec if each is not Codec.RAW])
def test_what_rounding_drops_comes_with_the_next_round(codec: Codec) -> None:
    """The applied means add up to the true ones, up to what is kept after the last round."""
    nodes, weights, num_rounds = [0, 1, 2, 3], [3, 5, 0, 11], 12
    start = {"w": torch.zeros(1000)}
    rounds = drifts(nodes, start, num_rounds, seed=2)
    scale = torch.logspace(-4, 0, 1000)  # one scale for many of them
    rounds = [{n: {"w": t["w"] * scale} for n, t in each.items()} for each in rounds]
    members = train(start, rounds, weights, optimizer="sgd", codec=codec, chunk_bytes=4096)
    exact = simulate(start, rounds, weights, OPTIMIZERS["sgd"][2])["w"]
    kept = sum(member.averager.feedback_of(0).kept.double() for member in members.values())
    got = members[0].live["w"].double()
    assert (got - exact).abs().max() > 1e-5  # rounding did something
    torch.testing.assert_close(got - kept, exact, rtol=0, atol=5e-6)


def test_arrival_order_does_not_change_a_bit() -> None:
    nodes, start = [0, 1, 2], {"w": torch.randn(997)}
    rounds = drifts(nodes, start, 3, seed=3)
    found = {
        bytes_of(
            train(start, rounds, [1, 2, 3], codec=Codec.INT8, window=w, chunk_bytes=512)[0].live[
                "w"
            ]
        )
        for w in (1, 2, 16)
    }
    assert len(found) == 1


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.INT8])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_change_that_is_not_finite_is_refused_by_all(codec: Codec, bad: float) -> None:
    nodes, start = [0, 1, 2], {"a": torch.zeros(300), "w": torch.zeros(300)}

    def work(node: int, transport: Transport) -> Member:
        member = Member(node, nodes, transport, start, codec=codec)
        member.drift({"w": torch.full((300,), 1.0 + node)})
        before = clones(member.live)
        if node == 1:
            member.live["w"][299] = bad
        with pytest.raises(AveragingError, match="node 1: 'w' has a NaN or an infinity"):
            member.average(0, 4)
        member.live["w"][299] = before["w"][299]
        assert_untouched(member.live, before)
        member.average(1, 4)  # the next round is fine
        return member

    members = play(nodes, work)
    assert all(torch.isfinite(member.live["w"]).all() for member in members.values())


def test_changes_without_samples_count_as_nothing() -> None:
    nodes, start = [0, 1], {"w": torch.zeros(300)}

    def work(node: int, transport: Transport) -> Member:
        member = Member(node, nodes, transport, start, optimizer="sgd", codec=Codec.INT8)
        member.live["w"].fill_(float("nan") if node == 1 else 2.0)
        member.average(0, 0 if node == 1 else 9)
        return member

    for member in play(nodes, work).values():
        torch.testing.assert_close(member.live["w"], torch.full((300,), 2.0), rtol=1e-2, atol=0)


def test_a_change_of_zero_stays_zero() -> None:
    nodes, start = [0, 1, 2], {"w": torch.randn(1000)}
    rounds = [{node: {"w": torch.zeros(1000)} for node in nodes}] * 3
    for codec in Codec:
        members = train(start, rounds, [1, 2, 3], codec=codec)
        assert bytes_of(members[1].live["w"]) == bytes_of(start["w"])


@pytest.mark.parametrize("codec", [Codec.RAW, Codec.INT8])
def test_a_round_voted_down_changes_neither_anchor_nor_state_nor_feedback(codec: Codec) -> None:
    """Ring 0 has reduced everything when node 1 hears of the trouble of node 2 in ring 1."""
    rings = {0: (0, 1), 1: (1, 2)}
    chunks: dict[int, list[FrameKind]] = {}

    def work(node: int, transport: Transport) -> list[bytes]:
        tap = Tapped(transport, pass_on)
        mine = {ring_id: members for ring_id, members in rings.items() if node in members}
        live = {f"t{ring_id}": torch.ones(600) for ring_id in mine}
        outer = outer_of(live)
        memberships = [membership(node, each, [f"t{i}"], ring_id=i) for i, each in mine.items()]
        averager = Averager(node, memberships, tap, outer=outer, codec=codec)

        def state() -> list[bytes]:
            kept = [averager.feedback_of(ring_id).kept for ring_id in mine]
            momenta = [tensor for name in live for tensor in outer.state_of(name).values()]
            return [bytes_of(t) for t in (*live.values(), *outer.anchors.values(), *momenta, *kept)]

        def average(round_id: int) -> None:
            averager.average(live, round_id=round_id, num_samples=1 + node, finished=False)

        for name in live:
            live[name].add_(torch.linspace(node, 1, 600))
        average(0)
        for name in live:
            live[name].add_(torch.linspace(1, node, 600))
        before = state()
        tap.kinds.clear()
        if node == 2:
            live["t1"][3] = float("nan")
        with pytest.raises(AveragingError, match="node 2: 't1' has a NaN"):
            average(1)
        chunks[node] = list(tap.kinds)
        if node == 2:
            live["t1"][3] = torch.linspace(node, 1, 600)[3]
        else:
            assert state() == before
        average(2)
        assert state() != before
        return state()[: len(live)]

    found = play([0, 1, 2], work)
    assert FrameKind.RING_CHUNK in chunks[0]
    assert FrameKind.RING_CHUNK not in chunks[2]
    assert found[0][0] == found[1][0]
    assert found[1][1] == found[2][0]


def test_members_that_start_differently_are_refused_with_the_reason() -> None:
    nodes = [0, 1]

    def work(node: int, transport: Transport) -> None:
        member = Member(node, nodes, transport, {"w": torch.full((4,), float(node))})
        with pytest.raises(AveragingError, match=r"disagree on '\(weights of the last round\)'"):
            member.average(0, 1)

    play(nodes, work)


def test_members_with_other_optimizers_are_refused_with_both() -> None:
    nodes, rates = [0, 1], {0: 0.7, 1: 0.5}

    def work(node: int, transport: Transport) -> None:
        start = {"w": torch.zeros(4)}
        member = Member(node, nodes, transport, start, params={"lr": rates[node]})
        with pytest.raises(AveragingError, match=r"lr=0\.7.*lr=0\.5"):
            member.average(0, 1)

    play(nodes, work)


def test_an_optimizer_that_fails_says_so_and_leaves_the_weights() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("no luck")

    def work(node: int, transport: Transport) -> None:
        start = {"w": torch.zeros(4)}
        member = Member(node, [0, 1], transport, start, optimizer=Broken, params={"lr": 1.0})
        with pytest.raises(AveragingError, match=r"Broken.*no luck"):
            member.average(0, 1)
        assert_untouched(member.live, start)

    play([0, 1], work)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.5, False), (0.9, True)])
def test_the_portable_sgd_is_torchs_up_to_rounding(momentum: float, nesterov: bool) -> None:
    own, other = (torch.nn.Parameter(torch.ones(50)) for _ in range(2))
    ours = OuterSGD([own], lr=0.3, momentum=momentum, nesterov=nesterov)
    torchs = torch.optim.SGD([other], lr=0.3, momentum=momentum, nesterov=nesterov)
    for _ in range(10):
        own.grad = torch.randn(50)
        other.grad = own.grad.clone()
        ours.step()
        torchs.step()
    torch.testing.assert_close(own, other, rtol=1e-6, atol=1e-6)


BAD: list[tuple[Any, Any, str]] = [
    ("adam", None, "outer_optimizer='adam' is unknown; expected None, one of 'sgd', 'nesterov'"),
    (3, None, "outer_optimizer=3 cannot be called"),
    (None, {"lr": 1.0}, "without outer_optimizer"),
    ("nesterov", {"lr": -1}, "lr is -1, expected a finite number from 0 on"),
    ("nesterov", {"rate": 1}, "cannot be made: TypeError"),
]


@pytest.mark.parametrize(("optimizer", "params", "words"), BAD)
def test_what_cannot_be_an_outer_optimizer_is_refused(
    optimizer: Any, params: Any, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_outer(optimizer, params)
