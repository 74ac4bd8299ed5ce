"""The digits CNN as the demo trains it, timed per epoch: `plan`, then one process per node name.

`one process` trains it in plain PyTorch with one thread, beside which the others are seen.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from examples.digits.memory import peak_memory_bytes
from examples.digits.model import (
    LEARNING_RATE,
    SEED,
    DigitsCNN,
    load_data,
    loss_fn,
    make_data,
)
from ravnest import Node, Trainer, set_seed

NUM_EPOCHS = 6


class TimedTrainer(Trainer):
    """Notes how long each epoch takes."""

    def train(self) -> None:
        self.prelim_checks()
        durations = []
        for _ in range(self.epochs):
            started = time.perf_counter()
            for x, _ in self.train_loader:
                self.node.forward_compute(x)
            self.node.wait_for_backwards()
            durations.append(time.perf_counter() - started)
        Path("epochs.json").write_text(json.dumps(durations))


def main(name: str) -> None:
    """Plans, or trains as one node, and writes its peak memory."""
    set_seed(SEED)
    if name == "plan":
        from ravnest import clusterize  # which providers neither need nor import

        make_data(Path("digits.safetensors"))
        clusterize(DigitsCNN(), example_args=(torch.rand(64, 1, 8, 8),), num_clusters=1)
        return
    train_loader, _ = load_data()
    if name == "one process":
        torch.set_num_threads(1)
        Path("epochs.json").write_text(json.dumps(durations_in_one_process(train_loader)))
        return
    node = Node(
        name=name,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": LEARNING_RATE},
        criterion=loss_fn,
        labels=train_loader,
    )
    TimedTrainer(node=node, train_loader=train_loader, epochs=NUM_EPOCHS).train()
    node.close()
    Path(f"{name}_peak.json").write_text(json.dumps(peak_memory_bytes()))


def durations_in_one_process(loader: DataLoader[Any]) -> list[float]:
    """Seconds of each epoch without Ravnest."""
    model, durations = DigitsCNN(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(NUM_EPOCHS):
        started = time.perf_counter()
        for batch in loader:
            loss_fn(model(batch[0]), batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        durations.append(time.perf_counter() - started)
    return durations


if __name__ == "__main__":
    main(sys.argv[1])
