"""One provider of `benchmarks.unequal`: says it is ready, waits to be throttled, then trains.

`python -m benchmarks.unequal_worker WORKLOAD OUTPUT OPTIONS`, with OPTIONS as JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.workloads import WORKLOADS, Workload
from ravnest import Node, Trainer


def main(workload_name: str, output: str, options: dict[str, Any]) -> None:
    """Writes how fast this process could compute, and on the root how long the rounds took."""
    torch.set_num_threads(1)
    workload = WORKLOADS[workload_name]()
    node = make_node(workload, options)
    print("ready", flush=True)
    sys.stdin.readline()
    figures: dict[str, Any] = {"speed": achieved_speed(options["calibrate_s"])}
    loader = workload.loader(options["steps"])
    trainer = Timed(node=node, train_loader=loader)
    trainer.plan_rounds(workload.num_microbatches, options["rounds"])
    trainer.train()
    node.close()
    figures["rounds_s"] = trainer.rounds_s
    Path(output).write_text(json.dumps(figures))


def make_node(workload: Workload, options: dict[str, Any]) -> Node:
    """A provider that steps once per step of the workload."""

    def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
        return workload.loss(predictions, targets[1]) / workload.num_microbatches

    return Node(
        name=options["name"],
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": 1e-3},
        criterion=criterion,
        update_frequency=workload.num_microbatches,
        schedule=options["schedule"],
    )


def achieved_speed(seconds: float) -> float:
    """Share of its time in which this process really computes: processor time over wall time.

    Multiplies matrices, which no process would give its processor up for.
    """
    matrix = torch.randn(256, 256)
    started, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - started < seconds:
        matrix @ matrix
    return (time.process_time() - cpu) / (time.perf_counter() - started)


class Timed(Trainer):
    """Trains a step to warm up, then rounds that are timed; the pipeline runs empty between."""

    rounds_s: list[float]
    num_warm: int
    num_rounds: int

    def plan_rounds(self, num_warm: int, num_rounds: int) -> None:
        """How many microbatches to warm up with, and how often to go through the loader."""
        self.rounds_s, self.num_warm, self.num_rounds = [], num_warm, num_rounds

    def train(self) -> None:
        self.prelim_checks()
        for x, _ in itertools.islice(self.train_loader, self.num_warm):
            self.node.forward_compute(x)
        self.node.wait_for_backwards()
        for _ in range(self.num_rounds):
            started = time.perf_counter()
            for x, _ in self.train_loader:
                self.node.forward_compute(x)
            self.node.wait_for_backwards()
            self.rounds_s.append(time.perf_counter() - started)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
