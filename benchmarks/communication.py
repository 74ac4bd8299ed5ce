"""Bytes that averaging takes, and the loss it ends with: rounds every 100 steps beside every step.

`python -m benchmarks.communication [--json] [--quick]`. Two clusters of real nodes train the
character GPT of `benchmarks.convergence`, with two blocks, over the in-memory transport, each on
its own batches:

- averaging in fp32 after every step, the yardstick;
- rounds every 100 steps with the Nesterov outer optimizer (DiLoCo), changes in 4 and in 8 bits.

All see the same samples. The rate is picked for each from the same grid by a seed that is not
judged; that of 8 bits is the one of 4. Bytes are all that a node hands to its transport in rounds:
headers, chunks with their frames, and votes. The loss is that of held-out text, with the weights
at the end. Runs go on side by side, one for each core: 5 minutes on 32 cores, over an hour on two.
"""

from __future__ import annotations

import math
import statistics
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.communication_run import Outcome, Setting, train
from benchmarks.convergence.side_by_side import processes
from benchmarks.report import Claim, finish, parse_arguments

EVERY_STEP = Setting("fp32, every step", reduce_factor=1)
OUTER = {"lr": 1.0, "momentum": 0.7}
"""Remembers three rounds of 120; the usual rate 0.7 with 0.9 is for more of them."""
FOUR_BITS = Setting("4 bits, every 100 steps", 100, "nesterov", "int4", OUTER)
EIGHT_BITS = Setting("8 bits, every 100 steps", 100, "nesterov", "int8-huffman", OUTER)
MIN_TIMES_FEWER = 400.0
MAX_BEHIND = 0.01
PICKING_SEED = 100


@dataclass(frozen=True)
class Extent:
    """How much is run: `--quick` or all of it."""

    num_steps: int
    rates: tuple[float, ...]
    num_seeds: int


FULL = Extent(num_steps=12_000, rates=(6e-3, 8e-3, 12e-3, 16e-3), num_seeds=3)
QUICK = Extent(num_steps=100, rates=(8e-3,), num_seeds=1)


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    extent = QUICK if arguments.quick else FULL
    with processes() as pool:
        figures = measure(Runs(pool, extent.num_steps), extent)
    base, *others = figures.values()
    for row in others:
        row["times_fewer_bytes"] = base["bytes"] / row["bytes"]
        row["behind"] = row["loss"] / base["loss"] - 1
        each = zip(row["losses"], base["losses"], strict=True)
        row["behind_by_seed"] = [own / other - 1 for own, other in each]
    claims = [
        claim
        for name, row in (("8 bits", figures[EIGHT_BITS.name]), ("4 bits", figures[FOUR_BITS.name]))
        for claim in (
            Claim(
                f"times fewer averaging bytes than fp32 every step, every 100 steps in {name}",
                row["times_fewer_bytes"],
                MIN_TIMES_FEWER,
                at_least=True,
            ),
            Claim(f"share its loss is behind at equal samples, {name}", row["behind"], MAX_BEHIND),
        )
    ]
    return finish(figures, claims, as_json=arguments.json)


class Runs:
    """Runs that are going on, a process each."""

    def __init__(self, pool: ProcessPoolExecutor, num_steps: int) -> None:
        self._pool, self._num_steps = pool, num_steps

    def start(self, setting: Setting, rate: float, seed: int) -> Future[Outcome]:
        """Starts one, as soon as there is a core for it."""
        future = self._pool.submit(train, setting, rate, seed, self._num_steps)
        future.add_done_callback(partial(_tell, f"{setting.name}, rate {rate}, seed {seed}"))
        return future


def measure(runs: Runs, extent: Extent) -> dict[str, dict[str, Any]]:
    """By setting: losses by rate for the picking seed, then by seed for the best, and bytes."""
    picked = (EVERY_STEP, FOUR_BITS)
    tried = {setting.name: _tried(runs, setting, extent.rates) for setting in picked}
    by_rate = {name: _losses(futures) for name, futures in tried.items()}
    by_rate[EIGHT_BITS.name] = by_rate[FOUR_BITS.name]
    started = {}
    for setting in (EVERY_STEP, FOUR_BITS, EIGHT_BITS):
        losses = by_rate[setting.name]
        best = min(extent.rates, key=lambda rate, known=losses: known.get(rate, 0.0))
        started[setting.name] = (
            best,
            [runs.start(setting, best, seed) for seed in range(extent.num_seeds)],
        )
    return {
        name: _row(best, by_rate[name], [future.result() for future in futures])
        for name, (best, futures) in started.items()
    }


def _tried(runs: Runs, setting: Setting, rates: tuple[float, ...]) -> dict[float, Future[Outcome]]:
    """Runs of the picking seed, none where there is nothing to pick from."""
    if len(rates) == 1:
        return {}
    return {rate: runs.start(setting, rate, PICKING_SEED) for rate in rates}


def _losses(futures: dict[float, Future[Outcome]]) -> dict[float, float]:
    """Final losses; that of a rate at which training diverged is infinite."""
    losses = {rate: future.result().loss for rate, future in futures.items()}
    return {rate: loss if math.isfinite(loss) else math.inf for rate, loss in losses.items()}


def _row(rate: float, by_rate: dict[float, float], outcomes: list[Outcome]) -> dict[str, Any]:
    return {
        "rate": rate,
        "loss": statistics.mean(each.loss for each in outcomes),
        "losses": [each.loss for each in outcomes],
        "by_rate": by_rate,
        "bytes": statistics.mean(each.sent_bytes for each in outcomes),
        "rounds": outcomes[0].num_rounds,
        "processor_s": statistics.median(each.processor_s for each in outcomes),
        "wall_s": statistics.median(each.wall_s for each in outcomes),
    }


def _tell(name: str, future: Future[Outcome]) -> None:
    if future.exception() is None:
        print(f"{name}: {future.result()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
