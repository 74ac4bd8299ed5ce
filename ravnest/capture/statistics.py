"""Batch statistics of a single value: their variance is no number, and neither is what it updates.

`torch.nn.BatchNorm` refuses such a batch in Python; the operators that are left of it in a graph
compute on and write NaN into the running variance.
"""

from __future__ import annotations

from typing import Any

import torch

from ravnest.errors import TrainingError

_aten = torch.ops.aten
_TRAINING = 5  # position of the flag
_OF_BATCHES = frozenset({_aten.batch_norm.default, _aten.native_batch_norm.default})


def takes_statistics(target: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call normalizes by the statistics of its own input, (N, C, ...)."""
    return target in _OF_BATCHES and len(args) > _TRAINING and args[_TRAINING] is True


def check_several(values: torch.Tensor) -> None:
    """Raises TrainingError when (N, C, ...) has one value per channel."""
    if values.numel() == values.shape[1]:
        raise TrainingError(
            f"BatchNorm got one value per channel, an input of shape {tuple(values.shape)}; their "
            "variance needs two at least",
            hint="use larger batches, drop_last=True in the loader where the last one is small, or "
            "fewer num_microbatches",
        )
