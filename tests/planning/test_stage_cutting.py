"""The dynamic programme over cuts, against trying every combination."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import (
    RUNTIME_FOOTPRINT_BYTES,
    OptimizerCost,
    PlanningSettings,
)
from ravnest.planning.inputs.table import cost_table
from ravnest.planning.search.stages import StageTimes, cut_into_stages
from ravnest.stage.schedule import Schedule

# Powers of two as rates and whole numbers as costs keep every sum exact, ties included.
_POWERS = st.integers(0, 4).map(lambda exponent: 2.0**exponent)


@st.composite
def _costs(draw: st.DrawFn) -> GraphCosts:
    num = draw(st.integers(1, 9))
    small = st.integers(0, 9)
    few = st.integers(0, draw(st.sampled_from((1, 2, 50))))  # few values make many ties
    places = draw(st.sets(st.integers(1, num - 1))) if num > 1 else set()
    uses = st.sets(st.integers(0, num - 1), min_size=1, max_size=3).map(sorted)
    stored = draw(st.lists(st.tuples(small, st.booleans(), uses), max_size=12))
    return GraphCosts(
        forward_flops=tuple(float(draw(few)) for _ in range(num)),
        saved_bytes=tuple(draw(small) for _ in range(num)),
        output_bytes=tuple(draw(few) for _ in range(num)),
        stored=tuple(
            ParameterCost(
                f"p{i}", num_bytes, trainable, True, places[0], tuple(places if places[1:] else ())
            )
            for i, (num_bytes, trainable, places) in enumerate(stored)
        ),
        cuts=tuple(Cut(place, draw(small), draw(small)) for place in sorted(places)),
        input_bytes=draw(small),
    )


@st.composite
def _nodes(draw: st.DrawFn) -> list[NodeSpec]:
    roomy = st.just(10**9)
    memory = roomy | st.integers(0, 400).map(lambda extra: RUNTIME_FOOTPRINT_BYTES + extra)
    speed = draw(st.sampled_from((st.just(1.0), _POWERS)))
    return [
        NodeSpec(i, "a:1", "a:1", draw(memory), 8 * draw(_POWERS), flops=draw(speed))
        for i in range(draw(st.integers(1, 5)))
    ]


def _every_rank(times: StageTimes, costs: GraphCosts) -> Iterator[tuple[float, float, int]]:
    """(slowest, total, cut bytes) of every legal cutting, by the definitions and nothing clever."""
    table = times.memory.table
    size = times.num_stages
    for inner in itertools.combinations(range(1, table.last), size - 1):
        bounds = [0, *inner, table.last]
        stages = list(zip(range(size), bounds, bounds[1:], strict=False))
        seconds = [_cost(times, costs, stage) for stage in stages]
        if None in seconds:
            continue
        exact = [each for each in seconds if each is not None]
        crossing = [
            costs.cuts[i - 1].forward_bytes + costs.cuts[i - 1].backward_bytes for i in inner
        ]
        yield max(exact), sum(exact), sum(crossing) + sum(_exchanged(costs, s) for s in stages)


def _exchanged(costs: GraphCosts, stage: tuple[int, int, int]) -> int:
    """Values that a stage sends to replicas, and gradients of its own replicas."""
    _, start, end = stage
    places = [0, *(cut.position for cut in costs.cuts), costs.num_positions]
    low, high = places[start], places[end]
    return sum(
        tensor.num_bytes
        for tensor in costs.stored
        if tensor.trainable
        and any(low <= use < high for use in tensor.uses)
        and (tensor.position < low or tensor.uses[-1] >= high)
    )


def _cost(times: StageTimes, costs: GraphCosts, stage: tuple[int, int, int]) -> float | None:
    index, start, end = stage
    places = [0, *(cut.position for cut in costs.cuts), costs.num_positions]
    inside = range(places[start], places[end])
    if not any(tensor.trainable and tensor.position in inside for tensor in costs.stored):
        return None
    needed = times.memory.stage_bytes(np.array(start), np.array(end), index, times.num_stages)
    node, nodes = times.nodes[index], times.nodes
    if needed > node.memory_bytes:
        return None
    computing = sum(3 * costs.forward_flops[i] + 60 * costs.output_bytes[i] for i in inside)
    computing += 35 * sum(t.num_bytes for t in costs.stored if t.trainable and t.position in inside)
    sent = received = 0
    if index + 1 < len(nodes):
        sent += costs.cuts[end - 1].forward_bytes
        received += costs.cuts[end - 1].backward_bytes
    if index > 0:
        sent += costs.cuts[start - 1].backward_bytes
        received += costs.cuts[start - 1].forward_bytes
    passing = max(sent, received) + _exchanged(costs, stage)
    return max(computing / (node.flops or 0), passing / (node.bandwidth_bps / 8))


@settings(max_examples=300)
@given(_costs(), _nodes(), st.sampled_from(Schedule), st.booleans())
def test_the_programme_finds_what_trying_everything_finds(
    costs: GraphCosts, nodes: list[NodeSpec], schedule: Schedule, is_averaged: bool
) -> None:
    memory = MemoryModel(
        cost_table(costs), PlanningSettings(schedule, OptimizerCost.of_states(1)), is_averaged
    )
    times = StageTimes(memory, nodes)
    ranks = list(_every_rank(times, costs))
    found = cut_into_stages(times)
    assert (found is not None) == bool(ranks) == times.can_fit()
    if found is None:
        return
    assert found.rank == min(ranks)
    assert found.cuts[0] == 0
    assert found.cuts[-1] == costs.num_positions
    legal = {cut.position for cut in costs.cuts}
    assert legal.issuperset(found.cuts[1:-1])
    for k, (low, high) in enumerate(itertools.pairwise(found.cuts)):
        assert any(t.trainable and low <= t.position < high for t in costs.stored)
        assert found.needed_bytes[k] <= nodes[k].memory_bytes


@settings(max_examples=100)
@given(_costs(), _nodes(), st.integers(2, 6))
def test_thinning_keeps_both_ends_and_never_promises_more(
    costs: GraphCosts, nodes: list[NodeSpec], num_boundaries: int
) -> None:
    memory = MemoryModel(cost_table(costs), PlanningSettings(), False)
    thin = memory.thinned(num_boundaries)
    assert set(thin.table.positions) <= set(memory.table.positions)
    assert (thin.table.positions[0], thin.table.positions[-1]) == (0, costs.num_positions)
    coarse = cut_into_stages(StageTimes(thin, nodes))
    if coarse is not None:
        fine = cut_into_stages(StageTimes(memory, nodes))
        assert fine is not None
        assert fine.rank <= coarse.rank


@given(_costs())
def test_no_more_stages_than_trainable_parameters_allow(costs: GraphCosts) -> None:
    table = cost_table(costs)
    memory = MemoryModel(table, PlanningSettings(), False)
    node = NodeSpec(0, "a:1", "a:1", 10**12, 1e9, flops=1e9)
    possible = [n for n in range(1, 12) if StageTimes(memory, [node] * n).can_fit()]
    assert possible == list(range(1, table.max_stages + 1))


def _chosen(costs: GraphCosts, nodes: Sequence[NodeSpec]) -> tuple[int, ...]:
    memory = MemoryModel(cost_table(costs), PlanningSettings(), False)
    found = cut_into_stages(StageTimes(memory, nodes))
    assert found is not None
    return found.cuts


def test_faster_nodes_get_more_work_and_slow_links_cheap_cuts() -> None:
    costs = GraphCosts(
        forward_flops=(100.0,) * 6,
        saved_bytes=(0,) * 6,
        output_bytes=(0,) * 6,
        stored=tuple(ParameterCost(f"p{i}", 4, True, True, i) for i in range(6)),
        cuts=tuple(Cut(i, 1000 if i == 2 else 10, 10) for i in range(1, 6)),
        input_bytes=0,
    )
    fast, slow = (NodeSpec(i, "a:1", "a:1", 10**9, 8e9, flops=f) for i, f in ((0, 4e6), (1, 2e6)))
    assert _chosen(costs, (fast, slow)) == (0, 4, 6)
    assert _chosen(costs, (slow, slow)) == (0, 3, 6)
    dial_up = [NodeSpec(i, "a:1", "a:1", 10**9, 8e5, flops=2e6) for i in range(3)]
    assert 2 not in _chosen(costs, dial_up)


def test_ties_in_time_go_to_the_cheapest_cuts() -> None:
    costs = GraphCosts(
        forward_flops=(100.0,) * 4,
        saved_bytes=(0,) * 4,
        output_bytes=(0,) * 4,
        stored=tuple(ParameterCost(f"p{i}", 4, True, True, i) for i in range(4)),
        cuts=(Cut(1, 25, 25), Cut(2, 5, 5), Cut(3, 5, 5)),
        input_bytes=0,
    )
    nodes = [NodeSpec(i, "a:1", "a:1", 10**9, 8e9, flops=1e3) for i in range(3)]
    assert _chosen(costs, nodes) == (0, 2, 3, 4)


def test_a_large_graph_is_cut_within_two_seconds(
    costs_of: Callable[..., GraphCosts], node_of: Callable[..., NodeSpec]
) -> None:
    costs = costs_of(5000)
    nodes = [node_of(i, mbps=20 * (i + 1), gflops=50 * (1 + i % 3)) for i in range(8)]
    memory = MemoryModel(cost_table(costs), PlanningSettings(), False)
    started = time.process_time()
    found = cut_into_stages(StageTimes(memory, nodes))
    assert found is not None
    assert len(costs.cuts) == 2500
    assert time.process_time() - started < 2.0
