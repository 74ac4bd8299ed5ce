"""What is trained: cases as the workers get them, and their settings. Imports no more than needed.

What a provider's script imports and loads is its own affair, and the plan does not count it; so
this benchmark's providers import torch, ravnest and the models, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

UPDATE_FREQUENCY = 4
NUM_STEPS = 3
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 1e-3}),
    "Adam": (torch.optim.Adam, {"lr": 1e-4}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-4}),
}


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        model: key of `SUBJECTS`.
        optimizer: key of `OPTIMIZERS`.
    """

    model: str
    optimizer: str
    recompute: bool
    schedule: str
    num_nodes: int

    def __str__(self) -> str:
        passes = "recomputed" if self.recompute else "kept"
        return f"{self.model}, {self.optimizer}, {passes}, {self.schedule}, {self.num_nodes} nodes"
