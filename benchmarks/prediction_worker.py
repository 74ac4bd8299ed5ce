"""The processes that `benchmarks.prediction` starts.

`python -m benchmarks.prediction_worker rate MODEL OUTPUT UPDATE_FREQUENCY`
`python -m benchmarks.prediction_worker provider MODEL NODE_DATA OPTIONS`
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.prediction_models import TRAININGS, Training

OPTIMIZER, OPTIMIZER_STATES = torch.optim.AdamW, 2
_NUM_RATE_STEPS = 5


def main(kind: str, model_name: str, place: str, argument: str) -> None:
    """Runs one worker with one thread."""
    torch.set_num_threads(1)
    training = TRAININGS[model_name]()
    if kind == "rate":
        Path(place).write_text(json.dumps(seconds_of_passes(training, int(argument))))
    else:
        provide(training, Path(place), json.loads(argument))


def seconds_of_passes(training: Training, update_frequency: int) -> list[float]:
    """Forward and backward pass of the whole model on one microbatch, as a mean of each step.

    Gradients add up over the passes of a step, as in training: that takes its time too.
    """
    model = training.build()
    seconds = []
    for _ in range(_NUM_RATE_STEPS + 1):
        model.zero_grad(set_to_none=True)
        begin_s = time.perf_counter()
        for _ in range(update_frequency):
            training.loss(model(training.inputs), training.targets).backward()
        seconds.append((time.perf_counter() - begin_s) / update_frequency)
    return seconds[1:]


def provide(training: Training, node_data: Path, options: dict[str, Any]) -> None:
    """One provider; its event log has the time of every optimizer step."""
    from ravnest import Node, Trainer

    frequency = options["update_frequency"]
    loader = training.loader(options["num_steps"] * frequency)
    with Node(
        name=options["name"],
        optimizer=OPTIMIZER,
        optimizer_params={"lr": 1e-3},
        criterion=lambda output, targets: training.loss(output, targets[1]) / frequency,
        update_frequency=frequency,
        labels=loader,
        compression=options["compression"],
        schedule=options["schedule"],
        node_data=node_data,
        insecure=True,
    ) as node:
        Trainer(node=node, train_loader=loader).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
