"""Every cluster that is worth its price, against all orders of all nodes along their best cuts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.planning_pools import gpt, pool
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import cost_table
from ravnest.planning.pools.costs import StageCosts
from ravnest.planning.pools.suffixes import Wanted, worthy_clusters
from ravnest.planning.pools.walks import Ground
from ravnest.planning.search.pace import Pace, Traits
from ravnest.planning.search.subsets import along
from ravnest.stage.schedule import Schedule


@pytest.mark.parametrize("schedule", [Schedule.ONE_F_ONE_B, Schedule.ASYNC])
@pytest.mark.parametrize(("seed", "narrow"), [(0, 2.0), (1, 2.0), (2, 1.3)])
def test_no_cluster_worth_enough_is_missed(schedule: Schedule, seed: int, narrow: float) -> None:
    table = cost_table(gpt(8, 768, samples=4))
    pace = Pace(MemoryModel(table, PlanningSettings(schedule=schedule), True), 10)
    traits = Traits.of(pool(5, seed))
    prices = traits.flops / pace.work[0, -1] * np.linspace(0.5, 1.0, 5)
    wanted = Wanted(prices, np.ones(5, dtype=np.bool_), 0.5, 5, 10**6, 10**6, narrow)
    seen = worthy_clusters(Ground(StageCosts(pace, traits)), wanted)
    got: dict[tuple[int, ...], float] = {}
    for nodes, rates in zip(seen.clusters, seen.rates, strict=True):
        for order, rate in zip(nodes.tolist(), rates.tolist(), strict=True):
            got[tuple(order)] = max(rate, got.get(tuple(order), 0.0))
    for size in range(1, 5):
        for nodes in itertools.combinations(range(5), size):
            orders = itertools.permutations(nodes)
            found = [along(pace, traits.take(np.array(order))) for order in orders]
            times = [each.step_s for each in found if each is not None]
            best = pace.frequency / min(times) if times else 0.0
            if best > 0.5 * (1 + 1e-9) * prices[list(nodes)].sum():
                own = max(rate for order, rate in got.items() if tuple(sorted(order)) == nodes)
                assert own == pytest.approx(best, rel=1e-9)
                assert best <= seen.ratio * prices[list(nodes)].sum()
