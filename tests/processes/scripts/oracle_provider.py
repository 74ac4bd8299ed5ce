"""Provider of the oracle task: `oracle_provider.py NAME SCHEDULE`."""

from __future__ import annotations

import sys

from oracle_data import FREQUENCY, OPTIMIZER, OPTIMIZER_PARAMS, criterion, loader

from ravnest import Node, Trainer, set_seed


def main(name: str, schedule: str) -> None:
    """Trains and saves."""
    set_seed(7)
    data = loader()
    node = Node(
        name=name,
        optimizer=OPTIMIZER,
        optimizer_params=OPTIMIZER_PARAMS,
        criterion=criterion,
        update_frequency=FREQUENCY,
        labels=data,
        schedule=schedule,
    )
    Trainer(node=node, train_loader=data, save=True).train()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
