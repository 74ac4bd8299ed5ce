"""Final losses of the schedules at equal samples, with and without delay compensation.

`python -m benchmarks.convergence [--json] [--quick]`. For every task, optimizer and schedule the
rate is picked of a small grid by the first seed, then further seeds run at it. The loss is that of
held-out data over the last tenth of the run. `async` makes a step with every batch, so stage i of
S uses gradients of S-1-i steps ago; `2bw` one step ago on every stage, whatever their number. One
process computes all of it with the weight versions that the schedules give (`delayed`). The time
claim is composed: steps needed for the loss, times the exact model's seconds per step (`pace`).
Runs are apart from each other and go over all cores, one each; a run's result is the same whatever
their number.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.convergence.pace import NUM_MICROBATCHES, OTHER_NUMBERS, step_time_s
from benchmarks.convergence.runs import OPTIMIZERS, Run
from benchmarks.convergence.side_by_side import Losses, processes
from benchmarks.convergence.tasks import TASKS
from benchmarks.report import Claim, finish, parse_arguments
from ravnest.planning.inputs.settings import DEFAULT_SCHEDULE
from ravnest.stage.delays import DelayCompensation
from ravnest.stage.schedule import Schedule

FASTEST = DEFAULT_SCHEDULE
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
ALL_ROWS = (SYNCHRONOUS, *ROWS)
UNJUDGED = tuple(row for row in ROWS if row.goal is None)  # one seed shows their size


@dataclass(frozen=True)
class Extent:
    """How much is run: `--quick` or all of it."""

    optimizers: Sequence[str]
    num_seeds: int
    whole_grid: bool
    shortened: int


@dataclass(frozen=True)
class Cell:
    """A row of the table for one task and optimizer."""

    task: str
    optimizer: str
    row: Row

    def rates(self, extent: Extent) -> tuple[float, ...]:
        """The grid, or its middle."""
        rates = TASKS[self.task]().rates[self.optimizer]
        middle = len(rates) // 2
        return rates if extent.whole_grid else rates[middle : middle + 1]

    def run(self, rate: float, seed: int) -> Run:
        """One run of it."""
        row = self.row
        return Run(
            self.task, self.optimizer, row.schedule, row.num_stages, row.compensation, rate, seed
        )


QUICK = Extent(("adamw",), num_seeds=1, whole_grid=False, shortened=1000)
FULL = Extent(tuple(OPTIMIZERS), num_seeds=3, whole_grid=True, shortened=1)


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    extent = QUICK if arguments.quick else FULL
    figures: dict[str, Any] = {}
    claims: list[Claim] = []
    with processes() as pool:
        losses = Losses(pool, extent.shortened)
        cells = [Cell(t, o, row) for t in TASKS for o in extent.optimizers for row in ALL_ROWS]
        measured = measure(cells, extent, losses)
        for task in TASKS:
            for optimizer in extent.optimizers:
                table = {row.name: measured[Cell(task, optimizer, row)] for row in ALL_ROWS}
                claims += judge(table, f"{task}, {optimizer}")
                figures.setdefault(task, {})[optimizer] = table
        figures["time"] = race(figures["text"]["adamw"], extent, losses)
    claims.append(
        Claim(
            f"share of its time in which {FASTEST} reaches the loss of 1f1b: text, adamw, "
            "three stages that wait, links of 50 ms (composed)",
            figures["time"]["share"],
            MAX_TIME,
        )
    )
    return finish(figures, claims, as_json=arguments.json)


def measure(cells: Sequence[Cell], extent: Extent, losses: Losses) -> dict[Cell, dict[str, Any]]:
    """Losses per cell, by rate for the first seed and by seed for the best rate."""
    grids = {cell: [cell.run(rate, 0) for rate in cell.rates(extent)] for cell in cells}
    losses.compute(run for grid in grids.values() for run in grid)
    best = {cell: min(grid, key=losses.of) for cell, grid in grids.items()}
    seeds = {cell: _seeds(best[cell], cell.row, extent) for cell in cells}
    losses.compute(run for runs in seeds.values() for run in runs)
    measured = {}
    for cell in cells:
        found = [losses.of(run) for run in seeds[cell]]
        measured[cell] = {
            "rate": best[cell].rate,
            "loss": statistics.mean(found),
            "losses": found,
            "by_rate": {run.rate: losses.of(run) for run in grids[cell]},
        }
    return measured


def judge(table: dict[str, dict[str, Any]], where: str) -> Iterable[Claim]:
    """How far each row is behind the synchronous one, at the same seeds."""
    for row in ROWS:
        result = table[row.name]
        same = table[SYNCHRONOUS.name]["losses"][: len(result["losses"])]
        result["behind"] = behind = result["loss"] / statistics.mean(same) - 1
        print(f"{where} {row.name}: {behind:+.2%}", file=sys.stderr, flush=True)
        if row.goal is not None:
            yield Claim(f"share that {row.name} is behind 1f1b: {where}", behind, row.goal)


def race(table: dict[str, Any], extent: Extent, losses: Losses) -> dict[str, Any]:
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
        losses.compute(runs)
        reached[length] = statistics.mean(losses.of(run) for run in runs)
        if reached[length] <= goal:
            break
    share = length * paces[NUM_MICROBATCHES] if reached[length] <= goal else float("inf")
    return {
        "step_time_ratio_by_microbatches": paces,
        "loss_by_length": reached,
        "goal": goal,
        "share": share,
    }


def _seeds(first: Run, row: Row, extent: Extent) -> list[Run]:
    num_seeds = 1 if row in UNJUDGED else extent.num_seeds
    return [first.with_seed(seed) for seed in range(num_seeds)]


if __name__ == "__main__":
    sys.exit(main())
