"""Deals the batches of a loader out to clusters, the same way on every node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ravnest.errors import ConfigError, TrainingError
from ravnest.node.batches import CurrentBatch


def owner_of_batch(index: int, num_clusters: int) -> int:
    """The cluster that trains on a batch: batches are dealt out in turn."""
    return index % num_clusters


class ShardedLoader:
    """Yields one cluster's share of a loader's batches, and remembers which batch it yielded last.

    Batches keep their number in the whole loader. Everything else (`dataset`, `batch_size` ...) is
    the loader's own.

    Args:
        loader: a DataLoader or any iterable of batches that starts afresh with each `iter`.
        cluster_id: whose share.
        num_clusters: over how many clusters the batches are dealt out; 1 for all batches.
    """

    def __init__(self, loader: Iterable[Any], cluster_id: int = 0, num_clusters: int = 1) -> None:
        if not 0 <= cluster_id < num_clusters:
            raise ConfigError(
                f"cluster_id={cluster_id} is not possible; expected 0 .. {num_clusters - 1}"
            )
        self._loader = loader
        self._cluster_id = cluster_id
        self._num_clusters = num_clusters
        self._current: CurrentBatch | None = None
        self._taken = False
        self._read_to_end = True

    def __iter__(self) -> Iterator[Any]:
        self._current = None
        after_whole_pass, self._read_to_end = self._read_to_end, False
        batch_size = getattr(self._loader, "batch_size", None)
        for index, batch in self._numbered():
            self._current = CurrentBatch(index, batch, batch_size, after_whole_pass)
            self._taken = False
            yield batch
        self._current = None
        self._read_to_end = True

    def __len__(self) -> int:
        total = len(self._loader)  # type: ignore[arg-type]
        return len(range(self._cluster_id, total, self._num_clusters))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def take(self) -> CurrentBatch | None:
        """The batch yielded last; None outside of an iteration.

        Raises:
            TrainingError: it was taken before, so two microbatches would share one number.
        """
        if self._current is not None and self._taken:
            raise TrainingError(
                f"batch {self._current.index} of the loader was passed to forward_compute twice",
                hint="use a loader that yields microbatches, with update_frequency to sum them up",
            )
        self._taken = True
        return self._current

    def _numbered(self) -> Iterator[tuple[int, Any]]:
        if self._num_clusters > 1 and _can_skip_unloaded(self._loader):
            yield from self._numbered_by_sampler(self._loader)
            return
        for index, batch in enumerate(self._loader):
            if owner_of_batch(index, self._num_clusters) == self._cluster_id:
                yield index, batch

    def _numbered_by_sampler(self, loader: Any) -> Iterator[tuple[int, Any]]:
        sampler = _BatchesOfCluster(loader.batch_sampler, self._cluster_id, self._num_clusters)
        own: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=sampler,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
        )
        for number, batch in enumerate(own):
            yield self._cluster_id + number * self._num_clusters, batch


def shard_loader(loader: Iterable[Any], node: Any) -> ShardedLoader:
    """This node's cluster's share of a loader; the same on every node of the cluster.

    Batch i goes to cluster i modulo the number of clusters. `Trainer` does this by itself to its
    `train_loader` unless it is given `shard=False`.

    Args:
        loader: yields the same batches in the same order on every node.
        node: the `Node` of this process.
    """
    if isinstance(loader, ShardedLoader):
        return loader
    return ShardedLoader(loader, node.plan.cluster_id, node.plan.num_clusters)


class _BatchesOfCluster:
    """A batch sampler that passes over the batches of other clusters without loading them."""

    def __init__(self, sampler: Iterable[Any], cluster_id: int, num_clusters: int) -> None:
        self._sampler = sampler
        self._cluster_id = cluster_id
        self._num_clusters = num_clusters

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self._sampler):
            if owner_of_batch(index, self._num_clusters) == self._cluster_id:
                yield batch


def _can_skip_unloaded(loader: Any) -> bool:
    """Whether batches can be chosen before they are loaded: a plain DataLoader over indices."""
    return (
        type(loader) is DataLoader
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, IterableDataset)
    )
