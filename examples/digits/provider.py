"""The provider script, the same on every node: `python -m examples.digits.provider node_0`.

It reads node_data/ and writes trained/ in the current folder.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from examples.digits.memory import peak_memory_bytes
from examples.digits.model import EPOCHS, LEARNING_RATE, SEED, load_data, loss_fn
from ravnest import Node, Trainer, set_seed


def main(name: str) -> None:
    """Trains this node's part of the plan and notes time and memory for the comparison."""
    set_seed(SEED)
    train_loader, test_loader = load_data()
    node = Node(
        name=name,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": LEARNING_RATE},
        criterion=loss_fn,
        labels=train_loader,
        test_labels=test_loader,
    )
    trainer = Trainer(
        node=node,
        train_loader=train_loader,
        val_loader=test_loader,
        val_freq=EPOCHS,
        epochs=EPOCHS,
        save=True,
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    trainer.evaluate()
    node.close()
    report = {"seconds": seconds, "peak_memory_bytes": peak_memory_bytes()}
    Path(f"report_{name}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
