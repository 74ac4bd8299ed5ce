"""Nested values of tensors and plain values in two files, without code: what processes exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ravnest.plan.structure import flatten, unflatten


def save_value(value: Any, path: Path) -> None:
    """Writes `path`.json (nesting and plain values) and `path`.safetensors (tensors)."""
    leaves, structure = flatten(value)
    tensors = {
        str(index): leaf.detach().contiguous().clone()
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
    }
    plain = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    path.with_suffix(".json").write_text(json.dumps({"structure": structure, "plain": plain}))
    save_file(tensors, path.with_suffix(".safetensors"))


def load_value(path: Path) -> Any:
    """Reads what `save_value` wrote; objects with named fields come back as `Record`."""
    data = json.loads(path.with_suffix(".json").read_text())
    tensors = load_file(path.with_suffix(".safetensors"))
    leaves = [tensors.get(str(index), plain) for index, plain in enumerate(data["plain"])]
    return unflatten(data["structure"], leaves)


def projection_loss(leaves: Mapping[str, Any]) -> torch.Tensor:
    """A scalar that every element of every output with a gradient takes part in.

    A fixed projection, because a mean of squares has no gradient behind a normalization.
    """
    total = torch.zeros(())
    for index, leaf in enumerate(leaves.values()):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            flat = torch.view_as_real(leaf) if leaf.is_complex() else leaf
            weights = torch.cos(1.3 * torch.arange(flat.numel()) + index)
            total = total + flat.float().flatten() @ weights / flat.numel() ** 0.5
    return total
