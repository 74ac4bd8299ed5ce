"""How good plans are, by the closed form that they are searched with, and how long planning takes.

`python -m benchmarks.planning [--json] [--quick]`, one thread. Small pools are held against the
best plan by exhaustive search, an implementation of its own (`planning_exhaustive.py`); large ones
against the bound that a thorough search of the same pool proves, which takes as long as it takes
and is shown beside. Both are for what the search found, before clusters are left out whose links
would keep the others waiting in averaging. `exact / planned` is what the schedule, run action by
action with the true rings, makes of the plan that is left.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.planning_exhaustive import best_rate
from benchmarks.planning_pools import cnn, gpt, pool
from benchmarks.report import Claim, finish, parse_arguments
from ravnest.capture.costs import GraphCosts
from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.clustering.clusters import Formation, form_clusters
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import CostTable, cost_table
from ravnest.planning.predicting import PlannedModel, pipeline_time, predict
from ravnest.planning.rings import form_rings
from ravnest.planning.search.ordering import Cluster
from ravnest.planning.search.pace import Pace, Traits
from ravnest.planning.search.stages import StageTimes
from ravnest.planning.timing.steady import steady_state

MODELS: dict[str, GraphCosts] = {
    "GPT 124M": gpt(12, 768, samples=4),
    "GPT 355M": gpt(16, 1024, samples=4),
    "GPT 774M": gpt(36, 1280, samples=2),
    "GPT 1.3B": gpt(24, 2048, samples=2),
    "CNN": cnn(16),
}
SMALL_SIZES = (3, 4, 5, 6) * 8 + (7, 8, 9) * 4 + (10,) * 3 + (11,) * 2 + (12,)  # 50 pools
SMALL_MODELS = ("GPT 124M", "GPT 355M", "CNN")
MOST_WITH_CNN = 8  # nodes; its 37 boundaries take the exhaustive search long
MEDIUM_SIZES = (24, 48, 100)
LARGE_SIZES = (300, 1000)
LARGE_MODELS = ("GPT 124M", "GPT 355M", "GPT 774M", "CNN")
MAX_NODES = 64

EQUAL = 0.999  # the planner gives up 0.1 % for clusters alike in speed


@dataclass(frozen=True)
class Planned:
    """One pool, planned."""

    formation: Formation
    seconds: float
    exact_over_planned: float


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    quick: bool = arguments.quick
    small = small_pools((3, 5, 7) if quick else SMALL_SIZES)
    medium = large_pools(
        (24,) if quick else MEDIUM_SIZES, LARGE_MODELS[:1] if quick else LARGE_MODELS
    )
    large = [] if quick else large_pools(LARGE_SIZES, LARGE_MODELS)
    unequal = unequal_nodes()
    figures: dict[str, Any] = {
        "small": small,
        "medium": medium,
        "large": large,
        "unequal": unequal,
        "exact / planned": statistics.median(
            row["exact / planned"] for row in (*small, *medium, *large) if row["planned"]
        ),
    }
    if not arguments.json:
        show(figures)
    claims = [
        *small_claims(small),
        *bound_claims("24 to 100 nodes", medium, 0.95, 2.0),
        *(bound_claims("300 to 1,000 nodes", large, 0.90, 20.0) if large else []),
        *(
            Claim(f"samples per second over an equal split, {name}", ratio, 1.5, at_least=True)
            for name, ratio in unequal.items()
        ),
        Claim(
            f"empty or negative stages for 1 to {MAX_NODES} nodes",
            empty_stages(range(1, MAX_NODES + 1, 9 if quick else 1)),
            0,
        ),
        Claim(
            "pools whose second plan differs",
            differing_plans((5, 24) if quick else (5, 12, 100)),
            0,
        ),
    ]
    return finish(figures, claims, as_json=arguments.json)


def small_pools(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Plans beside the best of all."""
    rows = []
    for seed, size in enumerate(sizes):
        name = SMALL_MODELS[seed % len(SMALL_MODELS)]
        if name == "CNN" and size > MOST_WITH_CNN:
            name = "GPT 355M"
        nodes = pool(size, seed)
        best = best_rate(cost_table(MODELS[name]), PlanningSettings(), nodes)
        planned = plan(name, nodes) if best > 0 else None
        rate = planned.formation.searched_rate if planned else 0.0
        rows.append(
            {
                **_row(name, nodes, planned),
                "best": best,
                "planned / best": rate / best if best > 0 else 1.0,
            }
        )
    return rows


def large_pools(sizes: Sequence[int], names: Sequence[str]) -> list[dict[str, Any]]:
    """Plans beside the closest bounds that are proven."""
    rows = []
    for seed, (size, name) in enumerate(itertools.product(sizes, names)):
        nodes = pool(size, 1000 + seed)
        planned, thorough = plan(name, nodes), plan(name, nodes, thorough=True)
        row = _row(name, nodes, planned)
        rate = planned.formation.searched_rate
        bound = min(each.formation.upper_bound for each in (planned, thorough))
        row["planned / own bound"] = row["planned / bound"]
        row["planned / bound"] = rate / bound
        row["thorough / bound"] = thorough.formation.searched_rate / bound
        row["thorough seconds"] = thorough.seconds
        rows.append(row)
    return rows


def plan(name: str, nodes: Sequence[NodeSpec], *, thorough: bool = False) -> Planned:
    """Plans one pool, and predicts by the exact schedule."""
    costs, settings = MODELS[name], PlanningSettings(thorough=thorough)
    table = cost_table(costs)
    start = time.perf_counter()
    formation = form_clusters(table, nodes, settings)
    seconds = time.perf_counter() - start
    clusters = [[node.node_id for node in cluster.nodes] for cluster in formation.clusters]
    rings = form_rings(costs.stored, clusters, [each.cutting.cuts for each in formation.clusters])
    model = PlannedModel(table, costs.stored, costs.num_samples)
    prediction = predict(model, formation, rings, settings)
    return Planned(formation, seconds, prediction.samples_per_s / prediction.planned_samples_per_s)


def _row(name: str, nodes: Sequence[NodeSpec], planned: Planned | None) -> dict[str, Any]:
    if planned is None:
        return {"model": name, "nodes": len(nodes), "planned": 0.0, "exact / planned": 1.0}
    formation = planned.formation
    sizes = [len(cluster.nodes) for cluster in formation.clusters]
    return {
        "model": name,
        "nodes": len(nodes),
        "clusters": len(sizes),
        "longest": max(sizes),
        "unused": len(formation.unused),
        "planned": formation.searched_rate,
        "planned / bound": formation.searched_rate / formation.upper_bound,
        "is_optimal": formation.is_optimal,
        "exact / planned": planned.exact_over_planned,
        "seconds": planned.seconds,
    }


def small_claims(rows: Sequence[dict[str, Any]]) -> list[Claim]:
    """Equal to the best, neither less nor (by a mistake in the search for it) more."""
    ratios = [row["planned / best"] for row in rows]
    name = f"planned over best by exhaustive search, {len(rows)} pools of 3 to 12 nodes"
    return [
        Claim(f"{name}, least", min(ratios), EQUAL, at_least=True),
        Claim(f"{name}, most", max(ratios), 1.0 + 1e-9),
    ]


def bound_claims(
    what: str, rows: Sequence[dict[str, Any]], goal: float, seconds: float
) -> list[Claim]:
    """Near enough to the bound, and fast enough."""
    least = min(row["planned / bound"] for row in rows)
    slowest = max(row["seconds"] for row in rows)
    return [
        Claim(f"planned over upper bound, {what}, least", least, goal, at_least=True),
        Claim(f"seconds to plan, {what}, most", slowest, seconds),
    ]


def unequal_nodes() -> dict[str, float]:
    """Rate over that of one pipeline in which every node has a third of the layers."""
    table, settings = cost_table(MODELS["GPT 124M"]), PlanningSettings()
    found = {}
    for mbps in (100, 1000):
        nodes = [
            NodeSpec(
                i, f"192.0.2.1:{8000 + i}", "0.0.0.0:8000", int(ram * 1e9), mbps * 1e6, flops, 0.01
            )
            for i, (ram, flops) in enumerate(((16, 4e11), (8, 2e11), (4, 1e11)))
        ]
        equal = _equal_split(table, nodes, settings)
        for what, number in (("any clusters", None), ("one cluster", 1)):
            wanted = PlanningSettings(num_clusters=number)
            formation = form_clusters(table, nodes, wanted)
            memory = MemoryModel(table, wanted, is_averaged=len(formation.clusters) > 1)
            rate = sum(_exact_rate(memory, cluster) for cluster in formation.clusters)
            found[f"RAM and speed 4:2:1, {mbps} Mbps, {what}"] = rate / equal
    return found


def _equal_split(table: CostTable, nodes: Sequence[NodeSpec], settings: PlanningSettings) -> float:
    """Microbatches per second of a pipeline with the same number of layers on every node."""
    memory = MemoryModel(table, settings, is_averaged=False)
    size = len(nodes)
    boundaries = [round(table.last * k / size) for k in range(size + 1)]
    pace = Pace(memory, 1)
    fits = [
        bool(pace.fits(Traits.of([node]), size - k)[0, boundaries[k], boundaries[k + 1]])
        for k, node in enumerate(nodes)
    ]
    assert all(fits), "an equal split that does not fit is nothing to be compared with"
    cutting = StageTimes(memory, nodes).cutting(boundaries)
    return _exact_rate(memory, Cluster(tuple(nodes), cutting, 0.0))


def _exact_rate(memory: MemoryModel, cluster: Cluster) -> float:
    time_ = pipeline_time(memory, cluster, {})
    return memory.settings.frequency / steady_state(time_).step_time_s


def empty_stages(numbers: Sequence[int]) -> int:
    """Stages without a position or without a parameter, over pools of so many nodes."""
    costs = MODELS["GPT 124M"]
    count = 0
    for number in numbers:
        for wanted in (None, 1):
            settings = PlanningSettings(num_clusters=wanted)
            roomy = [node for node in pool(2 * number + 8, number) if node.memory_bytes > 3e9]
            formation = form_clusters(cost_table(costs), roomy[:number], settings)
            for cluster in formation.clusters:
                for low, high in itertools.pairwise(cluster.cutting.cuts):
                    count += not any(low <= tensor.position < high for tensor in costs.stored)
    return count


def differing_plans(sizes: Sequence[int]) -> int:
    """Pools that get another plan when they are planned again, in another order."""
    count = 0
    for size in sizes:
        nodes = pool(size, 7 * size)
        first, second = (plan("GPT 124M", each).formation for each in (nodes, nodes[::-1]))
        count += first != second
    return count


def show(figures: dict[str, Any]) -> None:
    """Prints a line per pool."""
    for kind in ("small", "medium", "large"):
        for row in figures[kind]:
            parts = [f"{row['nodes']:5} nodes {row['model']:9}"]
            for key in (
                "planned / best",
                "planned / bound",
                "planned / own bound",
                "exact / planned",
                "seconds",
                "thorough / bound",
                "thorough seconds",
            ):
                if key in row:
                    parts.append(f"{key} {row[key]:.4f}")
            parts.append(f"clusters {row.get('clusters', 0)}, unused {row.get('unused', 0)}")
            print("  ".join(parts))


if __name__ == "__main__":
    sys.exit(main())
