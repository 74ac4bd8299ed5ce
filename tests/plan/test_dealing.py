"""Batches go to clusters by their speed, evenly spread, the same way everywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.plan.dealing import MAX_LENGTH, deal
from ravnest.plan.model import Plan
from ravnest.plan.nodes import node_plans
from ravnest.plan.prediction import ClusterPrediction, PlannedRun, Prediction


@pytest.mark.parametrize(
    ("rates", "pattern"),
    [([3.0], (0,)), ([2.0, 2.0], (0, 1)), ([2.0, 1.0], (0, 1, 0)), ([1.0, 3.0], (1, 0, 1, 1))],
)
def test_small_cases_by_hand(rates: list[float], pattern: tuple[int, ...]) -> None:
    assert deal(rates) == pattern


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12))
def test_nobody_waits_long_and_nobody_is_left_out(rates: list[float]) -> None:
    pattern = deal(rates)
    assert set(pattern) == set(range(len(rates)))
    assert len(pattern) <= MAX_LENGTH
    ideal = len(pattern) / sum(rates)
    slowest = max(pattern.count(c) / rate for c, rate in enumerate(rates))
    # One batch more than its exact share is the worst that rounding can do; a cluster too slow for
    # one batch in the longest pattern gets one all the same.
    limit = max((MAX_LENGTH / sum(rates) + 1 / r) / (MAX_LENGTH / sum(rates)) for r in rates)
    assert slowest <= max(1.02, limit) * ideal * (1 + 1e-9)


@given(st.lists(st.integers(1, 6), min_size=2, max_size=5))
def test_turns_are_evenly_spread(rates: list[int]) -> None:
    pattern = deal([float(rate) for rate in rates])
    for cluster in set(pattern):
        share = pattern.count(cluster) / len(pattern)
        for end in range(len(pattern) + 1):
            assert abs(pattern[:end].count(cluster) - share * end) <= len(rates) / 2 + 1


def _predicted(plan: Plan, rates: list[float]) -> Plan:
    run = PlannedRun("1f1b", 8, 4, 100, "torch.optim.adam.Adam", False, "none")
    clusters = tuple(
        ClusterPrediction(i, 1.0, rate, 0.1, "node 0 computing") for i, rate in enumerate(rates)
    )
    prediction = Prediction(run, (), (), clusters, 0.0, sum(rates), sum(rates), True, ())
    return dataclasses.replace(plan, prediction=prediction)


def test_measured_clusters_get_batches_by_speed(plan_of: Callable[..., Plan]) -> None:
    plan = _predicted(plan_of(((1, 2, 5), (6, 3, 4))), [10.0, 5.0])
    assert {node.dealing for node in node_plans(plan)} == {(0, 1, 0)}


def test_without_measured_speeds_clusters_take_turns(plan_of: Callable[..., Plan]) -> None:
    plan = _predicted(plan_of(((1, 2, 5), (0, 3, 4))), [10.0, 5.0])  # node 0 was not measured
    assert {node.dealing for node in node_plans(plan)} == {(0, 1)}
