"""Final losses of the schedules at equal samples, with and without delay compensation.

`python -m benchmarks.convergence [--json] [--quick]`. For every task, optimizer and schedule the
rate is picked of a small grid by the first seed, then further seeds run at it. The loss is that of
held-out data over the last tenth of the run. `async` makes a step with every batch, so stage i of
S uses gradients of S-1-i steps ago; `2bw` one step ago on every stage, whatever their number. One
process computes all of it with the weight versions that the schedules give (`delayed`). The time
claim is composed: steps needed for the loss, times the exact model's seconds per step (`pace`).
"""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.convergence.pace import NUM_MICROBATCHES, OTHER_NUMBERS, step_time_s
from benchmarks.convergence.runs import OPTIMIZERS, Run, final_loss
from benchmarks.convergence.tasks import TASKS
from benchmarks.report import Claim, finish, parse_arguments
from ravnest.stage.delays import DelayCompensation
from ravnest.stage.schedule import Schedule

FASTEST = Schedule.TWO_BW
LENGTHS = (1.0, 1.15)  # of which the time claim takes the first that reaches the loss
MAX_TIME = 0.8
OFF, AUTO = DelayCompensation.OFF, DelayCompensation.AUTO


@dataclass(frozen=True)
class Row:
    """A schedule in the table; `goal` is the largest share it may be behind `1f1b`, if any."""

    name: str
    schedule: Schedule
    num_stages: int
    compensation: DelayCompensation
    goal: float | None = None


SYNCHRONOUS = Row("1f1b", Schedule.ONE_F_ONE_B, 3, OFF)
COMPENSATED = Row("2bw", Schedule.TWO_BW, 3, AUTO, 0.01)
ROWS = (
    Row("2bw uncompensated", Schedule.TWO_BW, 3, OFF),
    COMPENSATED,
    Row("async, 3 stages, uncompensated", Schedule.ASYNC, 3, OFF),
    Row("async, 3 stages", Schedule.ASYNC, 3, AUTO, 0.02),
    Row("async, 8 stages, uncompensated", Schedule.ASYNC, 8, OFF),
    Row("async, 8 stages", Schedule.ASYNC, 8, AUTO, 0.05),
)
UNJUDGED = tuple(row for row in ROWS if row.goal is None)  # one seed shows their size


@dataclass(frozen=True)
class Extent:
    """How much is run: `--quick` or all of it."""

    optimizers: Sequence[str]
    num_seeds: int
    whole_grid: bool
    shortened: int


QUICK = Extent(("adamw",), num_seeds=1, whole_grid=False, shortened=1000)
FULL = Extent(tuple(OPTIMIZERS), num_seeds=3, whole_grid=True, shortened=1)


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    logging.disable(logging.WARNING)  # the uncompensated rows are meant to be
    torch.set_num_threads(1)
    extent = QUICK if arguments.quick else FULL
    figures: dict[str, Any] = {}
    claims: list[Claim] = []
    for task in TASKS:
        for optimizer in extent.optimizers:
            base = measure(task, optimizer, SYNCHRONOUS, extent)
            table = figures.setdefault(task, {})[optimizer] = {SYNCHRONOUS.name: base}
            for row in ROWS:
                result = table[row.name] = measure(task, optimizer, row, extent)
                same = base["losses"][: len(result["losses"])]
                result["behind"] = behind = result["loss"] / statistics.mean(same) - 1
                print(f"{task} {optimizer} {row.name}: {behind:+.2%}", file=sys.stderr, flush=True)
                if row.goal is not None:
                    name = f"share that {row.name} is behind 1f1b: {task}, {optimizer}"
                    claims.append(Claim(name, behind, row.goal))
    figures["time"] = race(figures["text"]["adamw"], extent)
    claims.append(
        Claim(
            f"share of its time in which {FASTEST} reaches the loss of 1f1b: text, adamw, "
            "three stages that wait, links of 50 ms (composed)",
            figures["time"]["share"],
            MAX_TIME,
        )
    )
    return finish(figures, claims, as_json=arguments.json)


def measure(task: str, optimizer: str, row: Row, extent: Extent) -> dict[str, Any]:
    """Losses of a row, by rate for the first seed and by seed for the best rate."""
    rates = TASKS[task]().rates[optimizer]
    middle = len(rates) // 2
    grid = rates if extent.whole_grid else rates[middle : middle + 1]
    run = Run(task, optimizer, row.schedule, row.num_stages, row.compensation, grid[0], 0)
    by_rate = {rate: final_loss(run.with_rate(rate), shortened=extent.shortened) for rate in grid}
    best = min(by_rate, key=by_rate.__getitem__)
    others = [
        final_loss(run.with_rate(best).with_seed(seed), shortened=extent.shortened)
        for seed in range(1, 1 if row in UNJUDGED else extent.num_seeds)
    ]
    losses = [by_rate[best], *others]
    return {"rate": best, "loss": statistics.mean(losses), "losses": losses, "by_rate": by_rate}


def race(table: dict[str, Any], extent: Extent) -> dict[str, Any]:
    """In which share of the time of `1f1b` the other schedule gets to its loss."""
    goal = table[SYNCHRONOUS.name]["loss"]
    rate = table[COMPENSATED.name]["rate"]
    paces = {
        number: step_time_s(FASTEST, number) / step_time_s(Schedule.ONE_F_ONE_B, number)
        for number in (NUM_MICROBATCHES, *OTHER_NUMBERS)
    }
    reached: dict[float, float] = {}
    for length in LENGTHS:
        runs = [
            Run("text", "adamw", FASTEST, 3, AUTO, rate, seed, length)
            for seed in range(extent.num_seeds)
        ]
        reached[length] = statistics.mean(final_loss(r, shortened=extent.shortened) for r in runs)
        if reached[length] <= goal:
            break
    share = length * paces[NUM_MICROBATCHES] if reached[length] <= goal else float("inf")
    return {
        "step_time_ratio_by_microbatches": paces,
        "loss_by_length": reached,
        "goal": goal,
        "share": share,
    }


if __name__ == "__main__":
    sys.exit(main())
