"""What the error of a shortage advises does fit, and what does not is not advised."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.errors import NotEnoughMemoryError
from ravnest.plan.parts import NodeSpec
from ravnest.planning.clustering.clusters import form_clusters
from ravnest.planning.inputs.settings import OptimizerCost, PlanningSettings
from ravnest.planning.inputs.table import cost_table

NodeOf = Callable[..., NodeSpec]
GB = 10**9
PLAIN = OptimizerCost("torch.optim.SGD", 0.0)


def costs_of(*, parameter: int, saved: int, crossing: int = 10**6) -> GraphCosts:
    """Eight positions that store and save alike, for 64 samples."""
    return GraphCosts(
        forward_flops=(1e6,) * 8,
        saved_bytes=(saved,) * 8,
        output_bytes=(0,) * 8,
        stored=tuple(ParameterCost(f"p{i}", parameter, True, True, i) for i in range(8)),
        cuts=tuple(Cut(i, crossing, crossing) for i in range(1, 8)),
        input_bytes=crossing,
        num_samples=64,
    )


def hint(costs: GraphCosts, nodes: list[NodeSpec], settings: PlanningSettings) -> str:
    with pytest.raises(NotEnoughMemoryError) as caught:
        form_clusters(cost_table(costs), nodes, settings)
    assert caught.value.hint is not None
    return caught.value.hint


def test_many_activations_call_for_recomputation_or_a_smaller_batch(node_of: NodeOf) -> None:
    costs = costs_of(parameter=10**6, saved=GB // 4)  # 2 GB, of four in flight on the root
    nodes = [node_of(i, gigabytes=1) for i in range(4)]
    settings = PlanningSettings(num_clusters=1, optimizer=PLAIN)
    advice = hint(costs, nodes, settings)
    assert "recompute=True" in advice
    found = re.search(r"an example batch of (\d+) instead of 64", advice)
    assert found
    assert "SGD" not in advice
    # It is the largest batch that fits.
    for batch, fits in ((int(found[1]), True), (int(found[1]) + 1, False)):
        share = batch / 64
        scaled = replace(
            costs,
            saved_bytes=tuple(int(each * share) for each in costs.saved_bytes),
            cuts=tuple(Cut(c.position, int(1e6 * share), int(1e6 * share)) for c in costs.cuts),
            input_bytes=int(1e6 * share),
            num_samples=batch,
        )
        if fits:
            form_clusters(cost_table(scaled), nodes, settings)
        else:
            hint(scaled, nodes, settings)
    form_clusters(cost_table(costs), nodes, replace(settings, recompute=True))


def test_many_weights_call_for_another_optimizer_or_dtype(node_of: NodeOf) -> None:
    costs = costs_of(parameter=GB // 4, saved=1000)
    nodes = [node_of(i, gigabytes=4) for i in range(2)]
    settings = PlanningSettings(num_clusters=1)
    advice = hint(costs, nodes, settings)
    assert "plain SGD" in advice
    assert "bfloat16" in advice
    assert "recompute" not in advice
    assert "batch" not in advice
    form_clusters(cost_table(costs), nodes, replace(settings, optimizer=PLAIN))


def test_what_helps_only_together_is_said_to(node_of: NodeOf) -> None:
    costs = costs_of(parameter=GB // 4, saved=GB // 4)
    nodes = [node_of(i, gigabytes=1.6) for i in range(4)]
    settings = PlanningSettings(num_clusters=1)
    advice = hint(costs, nodes, settings)
    assert "recompute=True together with plain SGD" in advice
    both = replace(settings, recompute=True, optimizer=PLAIN)
    if "bfloat16" not in advice:
        form_clusters(cost_table(costs), nodes, both)


def test_one_node_far_too_small_gets_no_false_hope(node_of: NodeOf) -> None:
    costs = costs_of(parameter=GB, saved=GB)
    advice = hint(costs, [node_of(0, gigabytes=0.01)], PlanningSettings(num_clusters=1))
    assert advice.startswith("add nodes or memory; no smaller batch")
