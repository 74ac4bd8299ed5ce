"""Fingerprints of batches, so that a leaf notices labels of another batch than the root's."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch

from ravnest.errors import DataOrderError
from ravnest.plan.structure import flatten

MAX_ELEMENTS = 4096

Fingerprint = list[tuple[str, list[int], int]]


def fingerprint(batch: Any) -> Fingerprint:
    """(dtype, shape, checksum) of every tensor in a batch.

    The checksum covers at most MAX_ELEMENTS evenly spaced values, so that it costs microseconds.
    """
    leaves, _ = flatten(batch)
    return [_of_tensor(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def check_fingerprint(
    announced: Sequence[Sequence[Any]], batch: Any, *, epoch: int, index: int
) -> None:
    """Compares the root's fingerprint with the leaf's own batch of the same number.

    Tensors are compared where both have one of the same dtype and shape; a root that
    transforms its inputs, or a leaf that loads labels alone, shares fewer of them.

    Raises:
        DataOrderError: a tensor of the root's batch has other values than the leaf's.
    """
    own: dict[tuple[str, tuple[int, ...]], set[int]] = {}
    for dtype, shape, checksum in fingerprint(batch):
        own.setdefault((dtype, tuple(shape)), set()).add(checksum)
    for dtype, shape, checksum in announced:
        candidates = own.get((dtype, tuple(shape)))
        if candidates is not None and checksum not in candidates:
            raise DataOrderError(
                f"batch {index} of epoch {epoch} differs between root and leaf: no tensor of the "
                f"leaf's `labels` batch has the values of the root's {dtype} {tuple(shape)}",
                hint="give both loaders the same order (shuffle=False, or a torch.Generator with "
                "the same seed), or leave `labels` out: the root then ships the targets",
            )


def _of_tensor(tensor: torch.Tensor) -> tuple[str, list[int], int]:
    flat = tensor.detach().reshape(-1)
    stride = max(1, -(-flat.numel() // MAX_ELEMENTS))
    sample = flat[::stride].contiguous().cpu()
    data = sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b""
    return (str(tensor.dtype), list(tensor.shape), zlib.crc32(data))
