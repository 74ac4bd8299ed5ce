"""Bounds of pools of hundreds of nodes, on few nodes against all clusters and all divisions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.planning_pools import gpt, pool
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import Floats, cost_table
from ravnest.planning.pools import walks
from ravnest.planning.pools.alike import spread
from ravnest.planning.pools.columns import Columns
from ravnest.planning.pools.costs import StageCosts
from ravnest.planning.pools.repeated import RepeatedSearch
from ravnest.planning.pools.suffixes import Wanted, worthy_clusters
from ravnest.planning.pools.walks import Ground
from ravnest.planning.search.pace import Pace, Traits
from ravnest.planning.search.subsets import along
from ravnest.stage.schedule import Schedule

_NODES = 5


def _pace(schedule: Schedule) -> Pace:
    table = cost_table(gpt(8, 768, samples=4))
    return Pace(MemoryModel(table, PlanningSettings(schedule=schedule), True), 10)


def _rates(pace: Pace, traits: Traits) -> dict[tuple[int, ...], float]:
    """Of the best order of every set of up to four nodes."""
    found: dict[tuple[int, ...], float] = {}
    for size in range(1, _NODES):
        for nodes in itertools.combinations(range(len(traits)), size):
            tried = (
                along(pace, traits.take(np.array(order))) for order in itertools.permutations(nodes)
            )
            times = [each.step_s for each in tried if each is not None]
            found[nodes] = pace.frequency / min(times) if times else 0.0
    return found


def _best(rates: dict[tuple[int, ...], float], left: frozenset[int]) -> float:
    """The most that disjoint sets come to."""
    if not left:
        return 0.0
    first = min(left)
    best = _best(rates, left - {first})
    for nodes, rate in rates.items():
        if nodes[0] == first and left.issuperset(nodes):
            best = max(best, rate + _best(rates, left - set(nodes)))
    return best


def _traits(seed: int) -> Traits:
    """Nodes of which the last is the first once more."""
    return Traits.of(pool(_NODES - 1, seed)).take(np.array([0, 1, 2, 3, 0]))


def _prices(pace: Pace, traits: Traits) -> Floats:
    return traits.flops / pace.work[0, -1] * np.linspace(0.5, 1.0, len(traits))


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ASYNC])
@pytest.mark.parametrize("seed", range(2))
def test_no_division_beats_the_bound(schedule: Schedule, seed: int) -> None:
    pace, traits = _pace(schedule), _traits(seed)
    columns = Columns(pace, traits)
    columns.add((node,) for node in range(_NODES))
    bound = RepeatedSearch(pace, traits, columns).run(0.0)
    best = _best(_rates(pace, traits), frozenset(range(_NODES)))
    assert best * (1 - 1e-9) <= bound <= 2.0 * best


@pytest.mark.parametrize("most", [2, 64])
def test_no_cluster_beats_the_ratio_with_little_memory_and_few_levels_told_apart(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "_MOST_LEVELS", most)
    monkeypatch.setattr(walks, "_MOST_SIZES", most)
    pace, traits = _pace(Schedule.ONE_F_ONE_B), _traits(1)
    prices = _prices(pace, traits)
    wanted = Wanted(prices, np.zeros(_NODES, dtype=np.bool_), 0.5, 5, 10**6, 10**6, 1.3, 1.5)
    seen = worthy_clusters(Ground(StageCosts(pace, traits)), wanted)
    rates = _rates(pace, traits)
    assert seen.is_complete
    assert seen.ratio >= max(rate / prices[list(key)].sum() for key, rate in rates.items())
    assert any(len(set(each)) < len(each) for nodes in seen.clusters for each in nodes.tolist())


@pytest.mark.parametrize(("kept", "tried"), [(3, 10**6), (40, 1)])
def test_what_is_given_up_is_in_the_ratio(kept: int, tried: int) -> None:
    pace, traits = _pace(Schedule.ONE_F_ONE_B), _traits(0)
    prices = _prices(pace, traits)
    wanted = Wanted(prices, np.zeros(_NODES, dtype=np.bool_), 0.5, 5, kept, tried, 2.0)
    seen = worthy_clusters(Ground(StageCosts(pace, traits)), wanted)
    assert not seen.is_complete
    rates = _rates(pace, traits)
    assert seen.ratio >= max(rate / prices[list(key)].sum() for key, rate in rates.items())


def test_prices_of_few_nodes_tell_those_of_all() -> None:
    traits = Traits.of(pool(50, 1))
    worth = np.linspace(1.0, 3.0, 50)
    told, chosen = spread(traits, worth, 10)
    assert told.shape == (50, 10)
    assert np.asarray(told @ np.ones(10)) == pytest.approx(worth)
    share = told @ (np.arange(10) == 4)
    assert share[chosen[4]] > 0.9 * worth[chosen[4]]  # its own price, nearly
