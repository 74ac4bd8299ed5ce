"""Members that do not fit together: named on every member, before any tensor moves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import torch
from averaging_harness import (
    Tapped,
    assert_untouched,
    clones,
    membership,
    pass_on,
    run_members,
    start_transports,
)

from ravnest.averaging import Averager, RoundResult
from ravnest.errors import AveragingError
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Codec, FrameKind

NAMES = ("fc.weight", "fc.bias")


@dataclass(frozen=True)
class Member:
    """What one member comes with; the default is what all the others have."""

    tensors: Mapping[str, torch.Tensor] = field(
        default_factory=lambda: {"fc.weight": torch.ones(4, 3), "fc.bias": torch.ones(4)}
    )
    companions: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)
    names: tuple[str, ...] = NAMES
    round_id: int = 5
    chunk_bytes: int = 8
    codec: Codec = Codec.RAW


def with_tensor(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**Member().tensors, name: tensor}


ODD_ONES = {
    "shape": (
        Member(with_tensor("fc.weight", torch.ones(3, 4))),
        r"'fc.weight': .*node 10 has float32 \(4, 3\).*node 20 has float32 \(3, 4\)",
    ),
    "dtype": (
        Member(with_tensor("fc.bias", torch.ones(4, dtype=torch.float64))),
        r"'fc.bias': .*node 10 has float32 \(4,\).*node 20 has float64 \(4,\)",
    ),
    "companion": (
        Member(companions={"fc.bias": {"momentum": torch.ones(4)}}),
        r"'fc.bias \[momentum\]': .*node 10 has none.*node 20 has float32 \(4,\)",
    ),
    "missing tensor": (
        Member({"fc.weight": torch.ones(4, 3)}),
        r"node 20: tensor 'fc.bias' belongs to the ring, but was not given",
    ),
    "kind of tensor": (
        Member(with_tensor("fc.bias", torch.ones(4).to_sparse())),
        r"node 20: 'fc.bias' is a float32 \(4,\) tensor with layout torch.sparse_coo",
    ),
    "order": (
        Member(names=NAMES[::-1]),
        r"order of the tensors differs: .*node 20 starts with .*",
    ),
    "round": (Member(round_id=6), r"node 10 is in round 5.*node 20 is in round 6"),
    "chunk size": (Member(chunk_bytes=4), r"chunk_bytes.*node 10 has 8.*node 20 has 4"),
    "codec": (Member(codec=Codec.BFLOAT16), r"codec.*node 10 has RAW.*node 20 has BFLOAT16"),
}


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("case", ODD_ONES)
def test_every_member_raises_the_same_before_any_tensor_moves(case: str, size: int) -> None:
    odd, words = ODD_ONES[case]
    nodes = [10, 20, 30, 40, 50][:size]
    members = {node: odd if node == 20 else Member() for node in nodes}
    before = {
        node: {name: tensor.clone() for name, tensor in members[node].tensors.items()}
        for node in nodes
    }
    transports = {
        node: Tapped(transport, pass_on)
        for node, transport in start_transports(nodes, window=1).items()
    }

    def work(node: int, transport: Transport) -> RoundResult:
        member = members[node]
        averager = Averager(
            node,
            [membership(node, nodes, member.names)],
            transport,
            chunk_bytes=member.chunk_bytes,
            codec=member.codec,
            window=1,
        )
        return averager.average(
            member.tensors,
            round_id=member.round_id,
            num_samples=1,
            finished=False,
            companions=member.companions,
        )

    outcomes = run_members(transports, work)
    assert all(type(outcome) is AveragingError for outcome in outcomes.values()), outcomes
    texts = {str(outcome).partition("not applied: ")[2] for outcome in outcomes.values()}
    assert len(texts) == 1
    for outcome in outcomes.values():
        with pytest.raises(AveragingError, match=words):
            raise outcome
    for node in nodes:
        assert set(transports[node].kinds) == {FrameKind.RING_HEADER}
        dense = {n: t for n, t in members[node].tensors.items() if t.layout is torch.strided}
        assert_untouched(dense, before[node])
        transports[node].close()


def test_the_next_round_works_after_a_disagreement() -> None:
    transports = start_transports([0, 1, 2])
    averagers = {
        node: Averager(node, [membership(node, [0, 1, 2], ["w"])], transport)
        for node, transport in transports.items()
    }

    def round_with(size_of_last: int, round_id: int) -> dict[int, object]:
        def work(node: int, _transport: Transport) -> torch.Tensor:
            weight = torch.full((size_of_last if node == 2 else 4,), float(node))
            averagers[node].average({"w": weight}, round_id=round_id, num_samples=1, finished=False)
            return weight

        return run_members(transports, work)

    assert all(isinstance(o, AveragingError) for o in round_with(5, 0).values())
    assert all(torch.equal(o, torch.ones(4)) for o in round_with(4, 1).values())


@pytest.mark.parametrize("bad_ring", [0, 1])
def test_a_disagreement_in_one_ring_is_refused_in_linked_rings(bad_ring: int) -> None:
    """Node 1 is in both rings; whoever shares only the good ring with it refuses as well."""
    rings = {0: (0, 1), 1: (1, 2)}
    live = {
        0: {"t0": torch.zeros(3)},
        1: {"t0": torch.ones(3), "t1": torch.ones(3)},
        2: {"t1": torch.zeros(3)},
    }
    live[0 if bad_ring == 0 else 2][f"t{bad_ring}"] = torch.zeros(2)
    before = {node: clones(tensors) for node, tensors in live.items()}
    transports = start_transports([0, 1, 2])

    def work(node: int, transport: Transport) -> RoundResult:
        mine = [
            membership(node, members, [f"t{ring_id}"], ring_id=ring_id)
            for ring_id, members in rings.items()
            if node in members
        ]
        averager = Averager(node, mine, transport)
        return averager.average(live[node], round_id=0, num_samples=1, finished=False)

    for outcome in run_members(transports, work).values():
        assert type(outcome) is AveragingError
        assert f"ring {bad_ring}: members disagree on 't{bad_ring}'" in str(outcome)
    for node, tensors in live.items():
        assert_untouched(tensors, before[node])


def test_a_long_list_of_differences_is_cut() -> None:
    names = [f"p{i}" for i in range(40)]
    transports = start_transports([0, 1])

    def work(node: int, transport: Transport) -> RoundResult:
        averager = Averager(node, [membership(node, [0, 1], names)], transport)
        tensors = {name: torch.ones(1 + node) for name in names}
        return averager.average(tensors, round_id=0, num_samples=1, finished=False)

    text = str(run_members(transports, work)[0])
    assert "'p4'" in text
    assert "'p5'" not in text
    assert "and 35 more" in text
