"""Provider that trains one batch and then holds still: `waiting_provider.py NAME`.

The root waits for a line on its standard input before it goes on, so all nodes are idle meanwhile.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from oracle_data import criterion, loader

from ravnest import Node, Trainer, set_seed


class Holding(Trainer):
    """Trains a batch, holds, trains another."""

    def train(self) -> None:
        self.prelim_checks()
        batches = iter(self.train_loader)
        self.node.forward_compute(next(batches)[0])
        self.node.update_with_latest_weights()
        Path("holding").touch()
        sys.stdin.readline()
        self.node.forward_compute(next(batches)[0])
        self.node.wait_for_backwards()


def main(name: str) -> None:
    """Runs the node."""
    set_seed(7)
    data = loader()
    node = Node(name=name, optimizer=torch.optim.SGD, optimizer_params={"lr": 0.1},
                criterion=criterion, labels=data)  # fmt: skip
    Path(f"ready_{name}").touch()
    Holding(node=node, train_loader=data).train()


if __name__ == "__main__":
    main(sys.argv[1])
