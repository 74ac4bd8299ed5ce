"""One run of the table: a task, an optimizer, a schedule and a rate; and what it ends with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.convergence.delayed import DelayedStage, cut, train
from benchmarks.convergence.tasks import TASKS, Task
from ravnest.stage.delays import DelayCompensation
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule
from ravnest.stage.updating import UpdateSettings

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "adam": (torch.optim.Adam, {"fused": True}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.01, "fused": True}),
}
WARM_UP_SHARE = 0.05
LAST_RATE = 0.02
NUM_MEASUREMENTS = 8
DIVERGED = 99.0


@dataclass(frozen=True)
class Run:
    """Everything that a run depends on.

    Attributes:
        rate: the peak of the learning rate, after a linear warm-up and before a cosine decay.
        length: steps, as a multiple of the task's.
    """

    task: str
    optimizer: str
    schedule: Schedule
    num_stages: int
    compensation: DelayCompensation
    rate: float
    seed: int
    length: float = 1.0

    def with_rate(self, rate: float) -> Run:
        """The same with another rate."""
        return replace(self, rate=rate)

    def with_seed(self, seed: int) -> Run:
        """The same with another seed."""
        return replace(self, seed=seed)


def final_loss(
    run: Run, *, shortened: int = 1, between: Sequence[torch.nn.Module] | None = None
) -> float:
    """Loss on what was held out, the mean of `NUM_MEASUREMENTS` over the last tenth of the run.

    Args:
        shortened: divides the number of steps.
        between: what values pass on the way from a stage to the next, one for each link.

    Returns:
        The loss; `DIVERGED` for one that is no number.
    """
    task = TASKS[run.task]()
    num_steps = max(NUM_MEASUREMENTS, round(task.num_steps * run.length) // shortened)
    links = [*(between or [torch.nn.Identity()] * (run.num_stages - 1)), torch.nn.Identity()]
    stages = [
        DelayedStage(
            torch.nn.Sequential(module, links[index]),
            StagePosition(run.schedule, index, run.num_stages, 1),
            lambda delay: _settings(run, num_steps, delay),
        )
        for index, module in enumerate(cut(task.build(run.seed), run.num_stages))
    ]
    apart = max(num_steps // 10 // NUM_MEASUREMENTS, 1)
    measured: list[float] = []

    def measure(step: int) -> None:
        left = num_steps - step
        if left % apart == 0 and left // apart < NUM_MEASUREMENTS:
            measured.append(_evaluate([stage.module for stage in stages], task))

    torch.manual_seed(run.seed)
    batches = itertools.islice(task.batches(1000 + run.seed), num_steps)
    train(stages, batches, task.loss, after_step=measure)
    mean = sum(measured) / len(measured)
    return mean if math.isfinite(mean) else DIVERGED


def _settings(run: Run, num_steps: int, delay: float) -> UpdateSettings:
    optimizer, params = OPTIMIZERS[run.optimizer]
    warm_up = max(round(WARM_UP_SHARE * num_steps), 1)

    def share(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        done = (step - warm_up) / max(num_steps - warm_up, 1)
        return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))

    return UpdateSettings(
        optimizer,
        {"lr": run.rate, **params},
        torch.optim.lr_scheduler.LambdaLR,
        {"lr_lambda": share},
        lr_step_on_epoch_change=False,
        compensation=run.compensation,
        delay=delay,
    )


def _evaluate(modules: Sequence[torch.nn.Module], task: Task) -> float:
    x, y = task.held_out
    with torch.no_grad():
        for module in modules:
            module.eval()
            x = module(x)
            module.train()
        return task.loss(x, y).item()
