"""Targets are found by the number of the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ravnest.errors import ConfigError, DataOrderError
from ravnest.node.labels import BatchAddress, label_source


def loader(count: int = 10, batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(count)), batch_size=batch_size)


def address(index: int, num_samples: int = 4, epoch: int = 0) -> BatchAddress:
    return BatchAddress(epoch, index, num_samples, 4)


def test_a_loader_is_read_by_number_and_starts_afresh_each_epoch() -> None:
    source = label_source(loader(), "labels")
    assert source is not None
    assert source.batch(address(0))[0].tolist() == [0, 1, 2, 3]
    assert source.batch(address(2, 2))[0].tolist() == [8, 9], "batch 1 is another cluster's"
    assert source.batch(address(1, epoch=1))[0].tolist() == [4, 5, 6, 7]


def test_a_batch_that_is_not_there_is_named() -> None:
    source = label_source(loader(), "labels")
    assert source is not None
    with pytest.raises(DataOrderError, match="`labels` of the leaf ended after 3 batches"):
        source.batch(address(3))


def test_going_back_is_refused() -> None:
    source = label_source(loader(), "labels")
    assert source is not None
    source.batch(address(1))
    with pytest.raises(DataOrderError, match="must be asked for in order"):
        source.batch(address(0))


def test_a_tensor_gives_a_pair_with_its_slice() -> None:
    source = label_source(torch.arange(10), "labels")
    assert source is not None
    first, targets = source.batch(address(2, 2))
    assert first is None
    assert targets.tolist() == [8, 9]
    with pytest.raises(
        DataOrderError, match="`labels` of the leaf has 10 targets, but batch 2 needs those"
    ):
        source.batch(address(2, 4))


def test_the_batch_keeps_its_own_type() -> None:
    class Encoding(dict[str, Any]):
        pass

    source = label_source([Encoding(labels=torch.ones(2))], "labels")
    assert source is not None
    assert type(source.batch(address(0))) is Encoding


def test_left_out_and_impossible_labels() -> None:
    assert label_source(None, "labels") is None
    with pytest.raises(ConfigError, match="labels is a int, expected a DataLoader or a tensor"):
        label_source(3, "labels")


@pytest.mark.parametrize("whole", [True, False])
def test_a_shuffling_loader_keeps_step_with_the_root_over_epochs(whole: bool) -> None:
    """The root reads to the end, or breaks off; the leaf's next order must be the same."""

    def shuffling() -> DataLoader[Any]:
        order = torch.Generator().manual_seed(5)
        return DataLoader(
            TensorDataset(torch.arange(12)), batch_size=4, shuffle=True, generator=order
        )

    root = shuffling()
    source = label_source(shuffling(), "labels")
    assert source is not None
    for epoch in range(3):
        for index, (batch,) in enumerate(root):
            if not whole and index == 2:
                break
            place = BatchAddress(epoch, index, 4, 4, after_whole_pass=whole)
            assert source.batch(place)[0].tolist() == batch.tolist()
