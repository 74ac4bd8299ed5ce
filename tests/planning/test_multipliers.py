"""Bounds by weighted paths: paths against all there are, ratios against all clusters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.planning_pools import gpt, pool
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import Floats, cost_table
from ravnest.planning.pools import terrain as terrains
from ravnest.planning.pools.multipliers import FIRST, Wanted, largest_ratio
from ravnest.planning.pools.terrain import Terrain
from ravnest.planning.pools.weighted import NO_WEIGHT, WeightedPaths, Weights
from ravnest.planning.search.pace import Pace, Traits
from ravnest.planning.search.subsets import along
from ravnest.stage.schedule import Schedule

_NODES = 5


def _pace(schedule: Schedule, layers: int, frequency: int | None = None) -> Pace:
    table = cost_table(gpt(layers, 768, samples=4))
    settings = PlanningSettings(schedule=schedule, update_frequency=frequency)
    return Pace(MemoryModel(table, settings, True), 10)


def _prices(pace: Pace, traits: Traits) -> Floats:
    return traits.flops / pace.work[0, -1] * np.linspace(0.5, 1.0, len(traits))


def _largest(pace: Pace, traits: Traits, prices: Floats) -> float:
    """Rate over price of the best cluster of three or four stages, which may have a node twice."""
    best = 0.0
    for size in range(FIRST, _NODES):
        for order in itertools.product(range(len(traits)), repeat=size):
            found = along(pace, traits.take(np.array(order)))
            if found is not None:
                best = max(best, pace.frequency / found.step_s / prices[list(order)].sum())
    return best


@pytest.mark.parametrize(
    ("seed", "schedule", "frequency"),
    [
        (0, Schedule.ONE_F_ONE_B, None),
        (0, Schedule.ONE_F_ONE_B, 1),
        (1, Schedule.ASYNC, None),
    ],
)
def test_no_cluster_beats_the_ratio(
    seed: int, schedule: Schedule, frequency: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = _pace(schedule, 6, frequency)
    traits = Traits.of(pool(_NODES - 1, seed)).take(np.array([0, 1, 2, 3, 0]))
    prices = _prices(pace, traits)
    best = _largest(pace, traits, prices)
    for levels in (2, 64):
        monkeypatch.setattr(terrains, "_MOST_LEVELS", levels)
        terrain = Terrain(pace, traits)
        ratios = []
        for narrow, tries in ((1.3, 0), (1.1, 0), (1.1, 8)):
            met: set[tuple[int, ...]] = set()
            wanted = Wanted(prices, 0.9 * best, narrow, tries)
            ratios.append(largest_ratio(terrain, wanted, met))
            assert ratios[-1] >= best
            assert bool(met) == bool(tries)
        assert ratios[2] <= ratios[1] <= ratios[0]
    assert ratios[2] <= 1.15 * best


def test_nothing_of_interest_is_nothing_worth_more() -> None:
    pace = _pace(Schedule.ONE_F_ONE_B, 8)
    traits = Traits.of(pool(_NODES, 0))
    prices = _prices(pace, traits)
    met: set[tuple[int, ...]] = set()
    assert largest_ratio(Terrain(pace, traits), Wanted(prices, 50.0, 1.05, 4), met) == 50.0
    assert not met


def _cost(
    pace: Pace,
    traits: Traits,
    prices: Floats,
    order: tuple[int, ...],
    cuts: tuple[int, ...],
    weights: tuple[Floats, Floats],
) -> float:
    """Of a pipeline from root to leaf; infinite where it does not fit."""
    total = 0.0
    for index, node in enumerate(order):
        place = len(order) - index
        start, end = cuts[index], cuts[index + 1]
        one = traits.take(np.array([node]))
        if not pace.fits(one, place)[0, start, end]:
            return np.inf
        seconds = pace.factor(place) * pace.work[start, end] / traits.flops[node]
        if index + 1 < len(order):
            other = traits.take(np.array([order[index + 1]]))
            seconds += pace.link_seconds(one, other)[0, end]
        update = pace.update_flops[start, end] / traits.flops[node]
        update += pace.sent_per_step[start, end] / traits.rate[node]
        total += prices[node] + weights[0][place - 1] * seconds
        total += weights[1][place - 1] * update / pace.periods
    return total


@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_path_is_the_cheapest_of_all(seed: int) -> None:
    pace = _pace(Schedule.ONE_F_ONE_B, 5)
    traits = Traits.of(pool(3, seed))
    prices = _prices(pace, traits)
    paths = WeightedPaths(Terrain(pace, traits), prices, 1e9, 1e-4)
    weights = Weights((9, 6, 3, 1), (5, NO_WEIGHT, 0))
    solved = paths.solved(weights)
    values = tuple(
        np.array([paths.weight(i) for i in each])
        for each in (weights.of_seconds, weights.of_update)
    )
    best = np.inf
    for order in itertools.product(range(3), repeat=3):
        for inner in itertools.combinations(range(1, pace.size - 1), 2):
            cost = _cost(pace, traits, prices, order, (0, *inner, pace.size - 1), values)
            best = min(best, cost)
    assert float(solved[-1][0, 0]) == pytest.approx(best, rel=1e-5)
    if np.isfinite(best):
        path = paths.traced(solved, weights)
        total = (
            prices[list(path.nodes)].sum() + values[0][:-1] @ path.seconds + values[1] @ path.update
        )
        assert total == pytest.approx(best, rel=1e-5)
