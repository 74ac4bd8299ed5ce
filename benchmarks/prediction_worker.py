"""The processes that `benchmarks.prediction` starts.

`python -m benchmarks.prediction_worker rate MODEL OUTPUT NUM_PASSES`
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

OPTIMIZER = torch.optim.AdamW


def main(kind: str, model_name: str, place: str, argument: str) -> None:
    """Runs one worker with one thread."""
    torch.set_num_threads(1)
    training = TRAININGS[model_name]()
    if kind == "rate":
        Path(place).write_text(json.dumps(seconds_of_passes(training, int(argument))))
    else:
        provide(training, Path(place), json.loads(argument))


def seconds_of_passes(training: Training, num_passes: int) -> list[float]:
    """Each forward and backward pass of the whole model on one microbatch, after a warm-up."""
    model = training.build()
    seconds = []
    for _ in range(num_passes + 2):
        begin_s = time.perf_counter()
        training.loss(model(training.inputs), training.targets).backward()
        seconds.append(time.perf_counter() - begin_s)
        model.zero_grad(set_to_none=True)
    return seconds[2:]


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
