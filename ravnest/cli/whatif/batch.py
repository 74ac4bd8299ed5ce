"""Another batch for an example: its tensors tiled or cut along their first dimension."""

from __future__ import annotations

from typing import Any

import torch

from ravnest.capture.example import replace_tensors
from ravnest.cli.whatif.changes import BatchChanged
from ravnest.errors import ConfigError
from ravnest.plan.structure import flatten


def rebatched(example: Any, change: BatchChanged) -> tuple[Any, str]:
    """The example with as many samples as the change says, and what was done to it, in words.

    The batch is the first dimension of the first tensor that has one. Tensors with another first
    dimension are kept as they are.

    Args:
        example: tensors in any nesting of containers.

    Raises:
        ConfigError: the example has no batch, or the factor gives no whole number of samples.
    """
    tensors = [leaf for leaf in flatten(example)[0] if isinstance(leaf, torch.Tensor)]
    batch = next((tensor.shape[0] for tensor in tensors if tensor.dim() > 0), 0)
    if batch == 0:
        raise ConfigError(f"'{change}': the example has no tensor with samples in it")
    size = _size(batch, change)
    is_batched = [tensor.dim() > 0 and tensor.shape[0] == batch for tensor in tensors]
    replaced = [
        _resized(tensor, size) if has_batch else tensor
        for tensor, has_batch in zip(tensors, is_batched, strict=True)
    ]
    verb = "tiled" if size > batch else "cut" if size < batch else "kept"
    note = f"example batch {batch} -> {size}: {_tensors(sum(is_batched))} {verb}"
    if num_kept := len(tensors) - sum(is_batched):
        note += f", {_tensors(num_kept)} without that batch kept"
    return replace_tensors(example, iter(replaced)), note


def _size(batch: int, change: BatchChanged) -> int:
    size = batch * change.amount if change.is_factor else change.amount
    if size < 1 or size != int(size):
        raise ConfigError(
            f"'{change}': {change.amount:g} times the example's {batch} samples is {size:g}; "
            "expected a whole number from 1 on"
        )
    return int(size)


def _resized(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Samples repeated from the first on, as many as are wanted."""
    rows = torch.arange(size, device=tensor.device) % tensor.shape[0]
    return tensor.detach().index_select(0, rows)


def _tensors(number: int) -> str:
    return "1 tensor" if number == 1 else f"{number} tensors"
