"""Fingerprints notice another order and leave transformed or partial batches alone."""

from __future__ import annotations

import pytest
import torch

from ravnest.errors import DataOrderError
from ravnest.node.fingerprint import MAX_ELEMENTS, check_fingerprint, fingerprint


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (MAX_ELEMENTS + 1,)], ids=str)
def test_every_dtype_and_shape_has_one(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(dtype)
    assert fingerprint(tensor) == fingerprint(tensor.clone())


def test_another_batch_of_the_same_shape_is_refused() -> None:
    root = (torch.randn(4, 3), torch.arange(4))
    leaf = (torch.randn(4, 3), torch.arange(4) + 1)
    check_fingerprint(fingerprint(root), root, epoch=0, index=0)
    with pytest.raises(DataOrderError, match="batch 3 of epoch 1 differs between root and leaf"):
        check_fingerprint(fingerprint(root), leaf, epoch=1, index=3)


def test_labels_alone_and_cast_inputs_are_no_fault() -> None:
    x, y = torch.randn(4, 3), torch.arange(4)
    check_fingerprint(fingerprint([x]), y, epoch=0, index=0)
    check_fingerprint(fingerprint([x.half()]), (x, y), epoch=0, index=0)


def test_nested_batches_are_compared_whole() -> None:
    batch = {"ids": torch.arange(6), "meta": [torch.ones(2), "text"]}
    changed = {"ids": torch.arange(6), "meta": [torch.zeros(2), "text"]}
    with pytest.raises(DataOrderError):
        check_fingerprint(fingerprint(batch), changed, epoch=0, index=0)
