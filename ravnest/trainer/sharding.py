"""Deals the batches of a loader out to clusters, the same way on every node."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from ravnest.errors import ConfigError, TrainingError
from ravnest.node.batches import CurrentBatch, UntrainedBatches
from ravnest.node.labels import epoch_of, length_of, set_epoch
from ravnest.node.ledger import NumberRuns, Run


class ShardedLoader:
    """Yields one cluster's share of a loader's batches, and remembers which batch it yielded last.

    Batches keep their number in the whole loader. Everything else (`dataset`, `batch_size` ...) is
    the loader's own.

    Args:
        loader: a DataLoader or any iterable of batches that starts afresh with each `iter`.
        cluster_id: whose share.
        dealing: batch i is cluster `dealing[i % len(dealing)]`'s; by default all are cluster 0's.
    """

    def __init__(
        self, loader: Iterable[Any], cluster_id: int = 0, dealing: Sequence[int] = (0,)
    ) -> None:
        if cluster_id not in dealing:
            raise ConfigError(
                f"cluster_id={cluster_id} is not possible; expected one of {sorted(set(dealing))}"
            )
        self._loader = loader
        self._cluster_id = cluster_id
        self._dealing = tuple(dealing)
        self._epoch: int | None = None
        self._current: CurrentBatch | None = None
        self._taken = False
        self._read_to_end = True
        self._untaken: list[int] = []  # of the pass that runs, or ran last
        self._is_noted = False
        self._has_taken = False
        self._past: list[UntrainedBatches] = []  # of passes before it

    def __iter__(self) -> Iterator[Any]:
        self._close_pass()
        self._current = None
        after_whole_pass, self._read_to_end = self._read_to_end, False
        batch_size = getattr(self._loader, "batch_size", None)
        length = length_of(self._loader)
        told = epoch_of(self._loader)  # the script may have told its sampler itself
        told = self._epoch if told is None else told
        for index, batch in self._numbered():
            self._note_untaken()
            self._current = CurrentBatch(index, batch, batch_size, after_whole_pass, length, told)
            self._taken = self._is_noted = False
            yield batch
        self._note_untaken()
        self._current = None
        self._read_to_end = True

    def set_epoch(self, epoch: int) -> None:
        """Tells the loader, its sampler and its dataset which epoch begins; the leaf's follow."""
        self._epoch = epoch
        set_epoch(self._loader, epoch)

    def loader_state(self) -> Any:
        """The loader's `state_dict()`; None when it could not be resumed from one."""
        makes, takes = (
            getattr(self._loader, name, None) for name in ("state_dict", "load_state_dict")
        )
        return makes() if callable(makes) and callable(takes) else None

    def __len__(self) -> int:
        total = len(self._loader)  # type: ignore[arg-type]
        passes, rest = divmod(total, len(self._dealing))
        own = self._dealing.count(self._cluster_id)
        return passes * own + self._dealing[:rest].count(self._cluster_id)

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
        self._taken = self._has_taken = True
        return self._current

    def take_untrained(self) -> UntrainedBatches:
        """Which batches were not trained in the passes since it was last asked, and why.

        A pass of which no batch was taken was not for training, and counts for nothing.
        """
        self._close_pass()
        past, self._past = self._past, []
        return UntrainedBatches(
            skipped=tuple(run for each in past for run in each.skipped),
            unread=tuple(run for each in past for run in each.unread),
            cut_off=past[-1].cut_off if past else (),
        )

    def _close_pass(self) -> None:
        last = self._current
        self._note_untaken()
        if self._has_taken:
            unread = () if last is None else range(last.index + 1, length_of(self._loader) or 0)
            self._past.append(
                UntrainedBatches(self._runs(self._untaken), self._runs(unread), self._cut_off())
            )
        self._untaken, self._has_taken = [], False

    def _note_untaken(self) -> None:
        if self._current is not None and not self._taken and not self._is_noted:
            self._untaken.append(self._current.index)
            self._is_noted = True

    def _runs(self, numbers: Iterable[int]) -> tuple[Run, ...]:
        """Of numbers that are this cluster's."""
        runs = NumberRuns(len(self._dealing))
        for number in numbers:
            if _is_own(number, self._cluster_id, self._dealing):
                runs.add(number)
        return runs.freeze()

    def _cut_off(self) -> tuple[Run, ...]:
        if not getattr(self._loader, "drop_last", False):
            return ()
        try:
            num_samples = len(self._loader.sampler)  # type: ignore[attr-defined]
            first = len(self._loader) * int(self.batch_size)  # type: ignore[arg-type]
        except (AttributeError, TypeError):
            return ()
        return ((first, num_samples - 1, 1),) if first < num_samples else ()

    def _numbered(self) -> Iterator[tuple[int, Any]]:
        if len(self._dealing) > 1 and _can_skip_unloaded(self._loader):
            yield from self._numbered_by_sampler(self._loader)
            return
        for index, batch in enumerate(self._loader):
            if _is_own(index, self._cluster_id, self._dealing):
                yield index, batch

    def _numbered_by_sampler(self, loader: Any) -> Iterator[tuple[int, Any]]:
        sampler = _BatchesOfCluster(loader.batch_sampler, self._cluster_id, self._dealing)
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
        numbers = (i for i in itertools.count() if _is_own(i, self._cluster_id, self._dealing))
        for batch in own:
            yield next(numbers), batch


def shard_loader(loader: Iterable[Any], node: Any) -> ShardedLoader:
    """This node's cluster's share of a loader; the same on every node of the cluster.

    Clusters take turns, faster ones more often if the plan knows that they are. `Trainer` does this
    by itself to its `train_loader` unless it is given `shard=False`.

    Args:
        loader: yields the same batches in the same order on every node.
        node: the `Node` of this process.
    """
    if isinstance(loader, ShardedLoader):
        return loader
    return ShardedLoader(loader, node.plan.cluster_id, node.plan.dealing)


class _BatchesOfCluster:
    """A batch sampler that passes over the batches of other clusters without loading them."""

    def __init__(self, sampler: Iterable[Any], cluster_id: int, dealing: Sequence[int]) -> None:
        self._sampler = sampler
        self._cluster_id = cluster_id
        self._dealing = dealing

    def __iter__(self) -> Iterator[Any]:
        for index, batch in enumerate(self._sampler):
            if _is_own(index, self._cluster_id, self._dealing):
                yield batch


def _is_own(index: int, cluster_id: int, dealing: Sequence[int]) -> bool:
    return dealing[index % len(dealing)] == cluster_id


def _can_skip_unloaded(loader: Any) -> bool:
    """Whether batches can be chosen before they are loaded: a plain DataLoader over indices."""
    return (
        type(loader) is DataLoader
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, IterableDataset)
    )
