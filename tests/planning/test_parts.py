"""Pools of more than a hundred nodes, whose clusters come from parts of them."""

from __future__ import annotations

import numpy as np

from benchmarks.planning_pools import gpt, pool
from ravnest.planning.clustering.clusters import form_clusters
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import cost_table
from ravnest.planning.pools.alike import dealt
from ravnest.planning.search.pace import Traits

_NUMBER = 110


def test_parts_have_every_node_once_and_are_much_like_the_whole() -> None:
    traits = Traits.of(pool(_NUMBER, 3))
    parts = dealt(traits, 4)
    assert sorted(node for part in parts for node in part.tolist()) == list(range(_NUMBER))
    assert {len(part) for part in parts} <= {27, 28}
    for values in (traits.memory, traits.flops):
        for part in parts:
            assert 0.8 < values[part].mean() / values.mean() < 1.25


def test_a_pool_is_worth_as_much_as_its_parts_and_has_every_node_once() -> None:
    nodes, table = pool(_NUMBER, 3), cost_table(gpt(12, 1024, samples=2))
    settings = PlanningSettings()
    whole = form_clusters(table, nodes, settings)
    used = [node.node_id for cluster in whole.clusters for node in cluster.nodes]
    assert len(set(used)) == len(used)
    assert sorted([*used, *whole.unused]) == sorted(node.node_id for node in nodes)
    parts = dealt(Traits.of(nodes), 2)
    by_part = [form_clusters(table, [nodes[i] for i in part], settings) for part in parts]
    assert whole.searched_rate >= 0.99 * sum(each.searched_rate for each in by_part)
    assert np.isfinite(whole.upper_bound)
    assert whole.searched_rate <= whole.upper_bound
