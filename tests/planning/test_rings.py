"""Rings over clusters that are cut differently."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ravnest.capture.costs import ParameterCost
from ravnest.planning.rings import form_rings, owner_of


def _tensor(name: str, position: int, *, is_parameter: bool = True) -> ParameterCost:
    return ParameterCost(name, 4, is_parameter, is_parameter, position)


@st.composite
def _cases(
    draw: st.DrawFn,
) -> tuple[list[ParameterCost], list[tuple[int, ...]], list[tuple[int, ...]]]:
    num_positions = draw(st.integers(1, 12))
    inner = st.sets(st.integers(1, num_positions - 1)) if num_positions > 1 else st.just(set())
    cuts = [
        (0, *sorted(places), num_positions)
        for places in draw(st.lists(inner, min_size=1, max_size=4))
    ]
    ids = iter(draw(st.permutations(range(sum(len(cut) - 1 for cut in cuts)))))
    clusters = [tuple(next(ids) for _ in cut[1:]) for cut in cuts]
    places = draw(st.lists(st.tuples(st.integers(0, num_positions - 1), st.booleans())))
    stored = [_tensor(f"t{i}", p, is_parameter=kind) for i, (p, kind) in enumerate(places)]
    return stored, clusters, cuts


@given(_cases())
def test_every_tensor_is_in_one_ring_with_one_owner_of_each_cluster(
    case: tuple[list[ParameterCost], list[tuple[int, ...]], list[tuple[int, ...]]],
) -> None:
    stored, clusters, cuts = case
    rings = form_rings(stored, clusters, cuts)
    held = [name for ring in rings for name in (*ring.parameters, *ring.buffers)]
    assert sorted(held) == sorted(tensor.name for tensor in stored)
    assert len({ring.members for ring in rings}) == len(rings)
    order = {tensor.name: i for i, tensor in enumerate(stored)}
    firsts = [min(order[n] for n in (*ring.parameters, *ring.buffers)) for ring in rings]
    assert firsts == sorted(firsts)
    assert [ring.ring_id for ring in rings] == list(range(len(rings)))
    for ring in rings:
        assert list(ring.parameters) == sorted(ring.parameters, key=order.__getitem__)
        for tensor in stored:
            if tensor.name in (*ring.parameters, *ring.buffers):
                assert tensor.is_parameter == (tensor.name in ring.parameters)
                for member, cluster, cut in zip(ring.members, clusters, cuts, strict=True):
                    stage = cluster.index(member)
                    assert cut[stage] <= tensor.position < cut[stage + 1]


def test_clusters_cut_alike_have_one_ring_per_stage() -> None:
    stored = [_tensor("a", 0), _tensor("b", 1), _tensor("b.mean", 1, is_parameter=False)]
    rings = form_rings(stored, [(1, 2), (0, 3)], [(0, 1, 2)] * 2)
    assert [(r.members, r.parameters, r.buffers) for r in rings] == [
        ((1, 0), ("a",), ()),
        ((2, 3), ("b",), ("b.mean",)),
    ]


def test_clusters_cut_differently_share_a_node_between_rings() -> None:
    stored = [_tensor(name, i) for i, name in enumerate("abcd")]
    rings = form_rings(stored, [(0, 1), (2, 3, 4)], [(0, 2, 4), (0, 1, 3, 4)])
    assert [(ring.members, ring.parameters) for ring in rings] == [
        ((0, 2), ("a",)),
        ((0, 3), ("b",)),
        ((1, 3), ("c",)),
        ((1, 4), ("d",)),
    ]


def test_owners_follow_half_open_ranges() -> None:
    assert [owner_of(position, (0, 2, 5)) for position in range(5)] == [0, 0, 1, 1, 1]
