"""Provider with a fault on demand: `failing_provider.py NAME FAULT TIMEOUT_S`.

FAULT: "none", "criterion" (raises at the third microbatch), "stall" (the root stops feeding and
touches "stalled"), "order" (the leaf's labels are in another order).
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import torch
from oracle_data import criterion, loader
from torch.utils.data import DataLoader

from ravnest import Node, Trainer, set_seed


class Stalling(Trainer):
    """Feeds three batches, then nothing more."""

    def train(self) -> None:
        self.prelim_checks()
        for number, (x, _) in enumerate(self.train_loader):
            self.node.forward_compute(x)
            if number == 2:
                Path("stalled").touch()
                threading.Event().wait()


def main(name: str, fault: str, timeout_s: str) -> None:
    """Runs the node."""
    set_seed(7)
    data = loader()
    labels = data
    calls = 0

    def failing_criterion(predictions, targets):
        nonlocal calls
        calls += 1
        if fault == "criterion" and calls == 3:
            raise ZeroDivisionError("the criterion divides by zero on purpose")
        return criterion(predictions, targets)

    if fault == "order":
        order = torch.Generator().manual_seed(1)
        labels = DataLoader(data.dataset, batch_size=8, shuffle=True, generator=order)
    node = Node(
        name=name,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        criterion=failing_criterion,
        labels=labels,
        timeout_s=float(timeout_s),
    )
    trainer = (Stalling if fault == "stall" else Trainer)(node=node, train_loader=data)
    trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
