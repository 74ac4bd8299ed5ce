"""The digits CNN as the demo trains it, timed per epoch: `plan`, then one process per node name."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

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


if __name__ == "__main__":
    main(sys.argv[1])
