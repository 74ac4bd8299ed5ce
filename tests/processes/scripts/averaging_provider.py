"""Notes its tensors before and after every averaging: `averaging_provider.py NAME`."""

from __future__ import annotations

import sys

import torch
from oracle_data import OPTIMIZER, OPTIMIZER_PARAMS, criterion, loader
from safetensors.torch import save_file

from ravnest import Node, Trainer, set_seed


def main(name: str) -> None:
    """Trains two epochs with an averaging every four steps."""
    set_seed(7)
    data = loader()
    node = Node(
        name=name,
        optimizer=OPTIMIZER,
        optimizer_params=OPTIMIZER_PARAMS,
        criterion=criterion,
        labels=data,
        reduce_factor=10,
    )
    averager = node._parts.rounds._averager
    average = averager.average

    def noting(tensors, *, round_id, num_samples, **arguments):
        def note(when):
            copies = {key: value.detach().clone() for key, value in tensors.items()}
            copies["num_samples"] = torch.tensor(num_samples)
            save_file(copies, f"{name}_{round_id}_{when}.safetensors")

        note("before")
        result = average(tensors, round_id=round_id, num_samples=num_samples, **arguments)
        note("after")
        return result

    averager.average = noting
    Trainer(node=node, train_loader=data, save=True).train()


if __name__ == "__main__":
    main(sys.argv[1])
