"""Whole clusters of large pools, on few nodes against the integer programme over all pairs."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks.planning_pools import gpt, pool
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import cost_table
from ravnest.planning.pools import diving
from ravnest.planning.pools.columns import Columns
from ravnest.planning.pools.diving import LONG_DIVE, SHORT_DIVE, DiveEffort, whole_clusters
from ravnest.planning.search.pace import Pace, Traits

_HALF_BYTES = 3.8e9  # of memory, enough for part of the model


def _columns(traits: Traits) -> Columns:
    table = cost_table(gpt(8, 768, samples=4))
    return Columns(Pace(MemoryModel(table, PlanningSettings(), True), 10), traits)


def _pairs(seed: int) -> Columns:
    """All nodes alone and by twos."""
    traits = Traits.of(pool(20, seed))
    columns = _columns(traits)
    columns.add((node,) for node in range(len(traits)))
    columns.add(itertools.permutations(range(len(traits)), 2))
    return columns


def _rate(columns: Columns, orders: list[tuple[int, ...]]) -> float:
    return sum(columns.found[tuple(sorted(order))][1] for order in orders)


@pytest.mark.parametrize("effort", [SHORT_DIVE, LONG_DIVE])
@pytest.mark.parametrize("seed", range(4))
def test_a_dive_comes_near_the_best_and_takes_a_node_once(
    seed: int, effort: DiveEffort, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = _pairs(seed)
    best = _rate(columns, whole_clusters(columns, effort))
    monkeypatch.setattr(diving, "_MOST_INTEGER", 0)
    dived = whole_clusters(columns, effort)
    nodes = [node for order in dived for node in order]
    assert len(set(nodes)) == len(nodes)
    assert _rate(columns, dived) >= 0.97 * best


def test_a_cluster_that_lost_a_node_comes_back_with_its_like(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diving, "_MOST_INTEGER", 0)
    monkeypatch.setattr(diving, "_CHEAPEST", 0)
    own = Traits.of(pool(2, 0))
    two = dataclasses.replace(own, memory=np.full(2, _HALF_BYTES))
    columns = _columns(two.take(np.array([0, 0, 1, 1])))
    columns.add([(0,), (2,), (0, 2)])
    assert list(columns.found) == [(0, 2)]  # neither holds the model alone
    assert sorted(len(order) for order in whole_clusters(columns, LONG_DIVE)) == [2, 2]


def test_nothing_comes_of_no_clusters() -> None:
    assert whole_clusters(_columns(Traits.of(pool(4, 0))), LONG_DIVE) == []
