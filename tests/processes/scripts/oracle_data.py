"""Data, loss and settings of the oracle task; what providers and the single process share."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, TensorDataset

NUM_STEPS = 20
FREQUENCY = 4
MICROBATCH = 8
OPTIMIZER = torch.optim.SGD
OPTIMIZER_PARAMS = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-4}


def loader() -> DataLoader:
    """NUM_STEPS steps of FREQUENCY microbatches."""
    generator = torch.Generator().manual_seed(5)
    count = NUM_STEPS * FREQUENCY * MICROBATCH
    x = torch.randn(count, 3, 8, 8, generator=generator)
    y = torch.randint(0, 5, (count,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=MICROBATCH)


def criterion(
    predictions: torch.Tensor, targets: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Mean over the step: each microbatch's share of it."""
    return torch.nn.functional.cross_entropy(predictions, targets[1]) / FREQUENCY
