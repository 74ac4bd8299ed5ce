"""Every batch goes to exactly one cluster, under its own number, the same on root and leaf."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from ravnest.errors import ConfigError, TrainingError
from ravnest.plan.dealing import deal
from ravnest.trainer.sharding import ShardedLoader


def loader(count: int, *, shuffle: bool = False) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(3)
    dataset = TensorDataset(torch.arange(count))
    return DataLoader(dataset, batch_size=4, shuffle=shuffle, generator=generator)


@given(
    st.integers(0, 40),
    st.lists(st.floats(1, 9), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_shards_are_disjoint_and_complete(
    count: int, rates: list[float], shuffle: bool, plain: bool
) -> None:
    clusters, dealing = len(rates), deal(rates)
    shuffle = shuffle and count > 0
    whole = [batch[0].tolist() for batch in loader(count, shuffle=shuffle)]
    dealt: dict[int, list[int]] = {}
    for cluster in range(clusters):
        source: Any = loader(count, shuffle=shuffle)
        if plain:  # no sampler to look into: an iterable of batches
            source = list(source)
        sharded = ShardedLoader(source, cluster, dealing)
        batches = 0
        for batch in sharded:
            current = sharded.take()
            assert current is not None
            assert current.index not in dealt
            dealt[current.index] = batch[0].tolist()
            batches += 1
        assert batches == len(sharded)
    assert [dealt[index] for index in range(len(whole))] == whole


def test_epochs_shuffle_alike_with_and_without_sharding() -> None:
    plain, sharded = loader(32, shuffle=True), ShardedLoader(loader(32, shuffle=True), 1, (0, 1))
    for _ in range(3):
        whole = [batch[0].tolist() for batch in plain]
        assert [batch[0].tolist() for batch in sharded] == whole[1::2]


def test_batches_of_other_clusters_are_not_loaded() -> None:
    class Counting(TensorDataset):
        loaded = 0

        def __getitem__(self, index: int) -> Any:
            Counting.loaded += 1
            return super().__getitem__(index)

    data = DataLoader(Counting(torch.arange(40)), batch_size=4)
    assert len(list(ShardedLoader(data, 0, (0, 1)))) == 5
    assert Counting.loaded == 20


def test_a_batch_is_taken_once_and_only_while_it_is_current() -> None:
    sharded = ShardedLoader(loader(8))
    assert sharded.take() is None
    for _ in sharded:
        assert sharded.take() is not None
        with pytest.raises(TrainingError, match="was passed to forward_compute twice"):
            sharded.take()
        break
    assert list(sharded)
    assert sharded.take() is None


def test_the_loader_shows_through() -> None:
    sharded = ShardedLoader(loader(8), 0, (0, 1))
    assert sharded.batch_size == 4
    assert len(sharded.dataset) == 8
    with pytest.raises(AttributeError):
        _ = sharded.nothing_of_that_name


def test_an_impossible_shard_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"cluster_id=2 is not possible; expected one of \[0, 1\]"
    ):
        ShardedLoader(loader(8), 2, (0, 1))
