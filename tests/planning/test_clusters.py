"""Nodes to clusters: how many, in which order, who is left over, and what does not fit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence

import pytest

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.errors import NotEnoughMemoryError, PlanningError
from ravnest.plan.parts import NodeSpec
from ravnest.planning.clustering.clusters import Formation, form_clusters
from ravnest.planning.clustering.shortage import format_bytes
from ravnest.planning.inputs.settings import RUNTIME_FOOTPRINT_BYTES, PlanningSettings
from ravnest.planning.inputs.table import cost_table
from ravnest.planning.search.ordering import ClusterSearch
from ravnest.planning.search.pace import Traits
from ravnest.planning.search.subsets import along

CostsOf = Callable[..., GraphCosts]
NodeOf = Callable[..., NodeSpec]


def _form(
    costs: GraphCosts, nodes: Sequence[NodeSpec], num_clusters: int | None = None
) -> Formation:
    return form_clusters(cost_table(costs), nodes, PlanningSettings(num_clusters=num_clusters))


def _ids(formation: Formation) -> list[list[int]]:
    return [[node.node_id for node in cluster.nodes] for cluster in formation.clusters]


def _check(formation: Formation, costs: GraphCosts, nodes: Sequence[NodeSpec]) -> None:
    """Every node once or unused with a reason; every stage holds something and fits."""
    used = [i for cluster in _ids(formation) for i in cluster]
    assert sorted((*used, *formation.unused)) == [node.node_id for node in nodes]
    assert all(formation.unused.values())
    for cluster in formation.clusters:
        cutting = cluster.cutting
        assert cutting.cuts[0] == 0
        assert cutting.cuts[-1] == costs.num_positions
        assert len(cutting.cuts) == len(cluster.nodes) + 1
        for index, (low, high) in enumerate(itertools.pairwise(cutting.cuts)):
            assert any(t.trainable and low <= t.position < high for t in costs.stored)
            assert cutting.needed_bytes[index] <= cluster.nodes[index].memory_bytes


@pytest.mark.parametrize("num_clusters", [None, 1, 2])
def test_one_to_sixty_four_nodes_never_get_an_empty_stage(
    costs_of: CostsOf, node_of: NodeOf, num_clusters: int | None
) -> None:
    costs = costs_of(40)
    most = cost_table(costs).max_stages
    for number in range(num_clusters or 1, 65):
        nodes = [node_of(i) for i in range(number)]
        formation = _form(costs, nodes, num_clusters)
        _check(formation, costs, nodes)
        if num_clusters is not None:
            assert len(formation.clusters) == num_clusters
            assert len(formation.unused) == max(0, number - num_clusters * most)


def test_unequal_nodes_never_get_an_empty_stage(costs_of: CostsOf, node_of: NodeOf) -> None:
    costs = costs_of(60)
    for number in (2, 5, 11, 23):
        nodes = [
            node_of(i, gigabytes=0.38 + i % 5, mbps=1 + 37 * i % 11, gflops=(7 * i) % 13 + 1)
            for i in range(number)
        ]
        _check(_form(costs, nodes), costs, nodes)


def test_extra_nodes_are_told_that_there_are_no_more_cuts(
    costs_of: CostsOf, node_of: NodeOf
) -> None:
    costs = costs_of(9)
    most = cost_table(costs).max_stages
    formation = _form(costs, [node_of(i) for i in range(8)], num_clusters=1)
    assert len(formation.unused) == 8 - most
    assert all(f"cut into {most} stages at most" in why for why in formation.unused.values())


def test_the_number_of_clusters_can_be_chosen(costs_of: CostsOf, node_of: NodeOf) -> None:
    costs = costs_of(30)
    assert _ids(_form(costs, [node_of(i) for i in range(3)], 1)) == [[0, 1, 2]]
    assert _ids(_form(costs, [node_of(i) for i in range(6)], 2)) == [[0, 2, 4], [1, 3, 5]]
    assert _ids(_form(costs, [node_of(i) for i in range(5)], 2)) == [[0, 2, 4], [1, 3]]


def test_the_same_nodes_give_the_same_clusters_in_any_order(
    costs_of: CostsOf, node_of: NodeOf
) -> None:
    costs = costs_of(30)
    nodes = [node_of(i, gigabytes=1 + i % 3, gflops=10 + i % 2) for i in range(7)]
    assert _form(costs, nodes) == _form(costs, nodes[::-1]) == _form(costs, nodes)


def test_a_small_model_on_slow_links_is_copied_rather_than_cut(node_of: NodeOf) -> None:
    costs = _even_costs(4, flops=1e6, crossing=10**6)
    assert _ids(_form(costs, [node_of(i) for i in range(3)])) == [[0], [1], [2]]


def test_a_model_too_large_for_any_node_is_cut(node_of: NodeOf) -> None:
    costs = _even_costs(4, flops=1e9, parameter=10**8)
    nodes = [node_of(i, gigabytes=1.3, gflops=1) for i in range(4)]
    formation = _form(costs, nodes)
    _check(formation, costs, nodes)
    assert all(len(cluster.nodes) > 1 for cluster in formation.clusters)


def test_a_node_that_would_slow_the_others_down_is_left_out(node_of: NodeOf) -> None:
    costs = _even_costs(6, flops=1e9, parameter=10**8, crossing=10**5)
    nodes = [node_of(0, gigabytes=2), node_of(1, gigabytes=2), node_of(2, gigabytes=1, mbps=0.01)]
    formation = _form(costs, nodes)
    assert _ids(formation) == [[0, 1]]
    assert "s per microbatch with it" in formation.unused[2]
    # Asked for one cluster, the planner uses every node that fits.
    assert len(_ids(_form(costs, nodes, 1))[0]) == 3


def test_a_node_too_small_for_any_stage_is_left_out(costs_of: CostsOf, node_of: NodeOf) -> None:
    formation = _form(costs_of(12), [node_of(0), node_of(1, gigabytes=0.2), node_of(2)], 1)
    assert sorted(_ids(formation)[0]) == [0, 2]
    assert formation.unused[1].startswith("it has 200 MB, and the smallest stage needs 37")


def test_the_order_inside_a_cluster_is_the_best_there_is(
    costs_of: CostsOf, node_of: NodeOf
) -> None:
    table = cost_table(costs_of(24))
    settings = PlanningSettings()
    search = ClusterSearch(table, settings, num_clusters=1)
    for seed in range(4):
        nodes = [
            node_of(i, gigabytes=0.356 + 0.004 * ((i + seed) % 4), mbps=1 + i, gflops=5 + seed * i)
            for i in range(4)
        ]
        found = search.best(nodes)
        every = [along(search.pace, Traits.of(order)) for order in itertools.permutations(nodes)]
        times = [each.step_s for each in every if each is not None]
        assert (found is None) == (not times)
        if found is not None:
            assert found.rate == pytest.approx(settings.update_frequency / min(times), rel=1e-9)


def test_speed_that_is_not_measured_counts_as_the_median_of_the_others(node_of: NodeOf) -> None:
    costs = _even_costs(9, flops=1e9)
    nodes = [node_of(0, mbps=1e6, gflops=10), node_of(1, mbps=1e6), node_of(2, mbps=1e6, gflops=10)]
    (cluster,) = _form(costs, nodes, 1).clusters
    assert cluster.cutting.cuts == (0, 3, 6, 9)


def test_too_little_memory_says_needed_and_available_per_node_and_in_all(node_of: NodeOf) -> None:
    costs = _even_costs(4, parameter=10**9)
    nodes = [node_of(0, gigabytes=7), node_of(1, gigabytes=6.5), node_of(2, gigabytes=0.1)]
    with pytest.raises(NotEnoughMemoryError) as caught:
        _form(costs, nodes)
    message = str(caught.value)
    # 2 GB of parameters, with gradients and two states, the temporaries of a step, the runtime.
    assert re.search(r"node 0: needs 10\.37 GB, has 7\.00 GB, 3\.37 GB too little", message)
    assert re.search(r"node 1: needs 10\.37 GB, has 6\.50 GB, 3\.87 GB too little", message)
    assert "node 2: cannot be used, has 100 MB" in message
    assert "in all: needs 20.74 GB, has 13.60 GB, 7.24 GB are missing" in message
    assert "on one node alone the model needs 18.37 GB" in message
    assert "plain SGD as the optimizer fits" in message
    assert "batch" not in message, "activations are not what is too much"


def test_too_many_clusters_for_the_memory_says_how_many_fit(node_of: NodeOf) -> None:
    costs = _even_costs(4, parameter=10**8)
    nodes = [node_of(i, gigabytes=1.5) for i in range(2)]
    with pytest.raises(NotEnoughMemoryError, match=r"in 2 clusters(?s:.)*num_clusters=1 fits"):
        _form(costs, nodes, 2)


def test_when_memory_is_short_some_node_needs_more_than_it_has(
    costs_of: CostsOf, node_of: NodeOf
) -> None:
    costs = costs_of(30, scale=10**8)
    for number, size in ((1, 0.5), (3, 0.9), (7, 0.7)):
        nodes = [node_of(i, gigabytes=size + i / 10) for i in range(number)]
        with pytest.raises(NotEnoughMemoryError) as caught:
            _form(costs, nodes)
        needs = re.findall(r"node \d+: needs ([\d.]+) (.B), has ([\d.]+) (.B)", str(caught.value))
        units = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
        assert any(float(a) * units[b] > float(c) * units[d] for a, b, c, d in needs)


def test_more_clusters_than_nodes_is_refused(costs_of: CostsOf, node_of: NodeOf) -> None:
    with pytest.raises(PlanningError, match="num_clusters=3, but 2 of 2 nodes can hold a stage"):
        _form(costs_of(12), [node_of(0), node_of(1)], 3)


def test_a_model_with_nothing_to_train_is_refused(node_of: NodeOf) -> None:
    frozen = ParameterCost("w", 4, False, True, 0)
    costs = GraphCosts((1.0,), (1,), (1,), (frozen,), (), 4)
    with pytest.raises(PlanningError, match="nothing to train"):
        _form(costs, [node_of(0)])


def test_a_model_that_cannot_be_cut_stays_whole(node_of: NodeOf) -> None:
    whole = ParameterCost("w", 4, True, True, 0)
    costs = GraphCosts((1.0, 1.0), (1, 1), (1, 1), (whole,), (), 4)
    formation = _form(costs, [node_of(0), node_of(1)], 1)
    assert _ids(formation) == [[0]]
    assert list(formation.unused) == [1]


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.50 kB"),
        (350_692_656, "351 MB"),
        (12_340_000, "12.34 MB"),
        (1_250_000_000, "1.25 GB"),
        (1234 * 10**9, "1234.00 GB"),
    ],
)
def test_bytes_are_shown_in_the_units_of_the_file(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def _even_costs(
    num: int, *, flops: float = 1e6, parameter: int = 1000, crossing: int = 100
) -> GraphCosts:
    return GraphCosts(
        forward_flops=(flops,) * num,
        saved_bytes=(100,) * num,
        output_bytes=(100,) * num,
        stored=tuple(ParameterCost(f"p{i}", parameter, True, True, i) for i in range(num)),
        cuts=tuple(Cut(i, crossing, crossing) for i in range(1, num)),
        input_bytes=100,
    )


def test_the_footprint_of_the_runtime_is_what_the_messages_assume() -> None:
    assert RUNTIME_FOOTPRINT_BYTES == 370_000_000
