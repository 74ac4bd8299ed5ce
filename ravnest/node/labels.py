"""Where the leaf's targets come from: its own loader, a tensor of all of them, or the root.

Targets are addressed by the number of the batch, never by how often an iterator was called.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.errors import ConfigError, DataOrderError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchAddress:
    """Which batch of the data a microbatch is.

    Attributes:
        epoch: of the run, or number of the evaluation pass.
        index: number of the batch in the loader, before it is dealt out to clusters.
        num_samples: samples in the batch.
        batch_size: samples of a full batch, None when the root does not know.
        after_whole_pass: whether the root read its loader to the end in the epoch before.
        num_batches: of the root's whole loader, None when it does not say.
        loader_epoch: which epoch the root's loader was told to be in, None when it was not.
    """

    epoch: int
    index: int
    num_samples: int
    batch_size: int | None
    after_whole_pass: bool = True
    num_batches: int | None = None
    loader_epoch: int | None = None


class LabelSource(abc.ABC):
    """Targets by address."""

    @abc.abstractmethod
    def batch(self, address: BatchAddress) -> Any:
        """The whole batch the criterion gets as its targets.

        Raises:
            DataOrderError: there is no such batch.
        """


class LoaderLabels(LabelSource):
    """Targets out of a loader with the same order as the root's; keeps the batch's own type."""

    def __init__(self, loader: Iterable[Any], name: str, owner: str) -> None:
        self._loader = loader
        self._name = f"`{name}` of {owner}"
        self._num_batches = length_of(loader)
        self._has_compared = False
        self._epoch: int | None = None
        self._iterator: Iterator[Any] = iter(())
        self._next_index = 0
        self._batch: Any = None  # the one before `_next_index`; its microbatches all ask for it

    def batch(self, address: BatchAddress) -> Any:
        if address.epoch != self._epoch:
            self._begin(address)
        elif address.index == self._next_index - 1:
            return self._batch
        if address.index < self._next_index:
            raise DataOrderError(
                f"batch {address.index} of epoch {address.epoch} was asked of {self._name} "
                f"after batch {self._next_index - 1}; batches must be asked for in order",
            )
        while self._next_index <= address.index:
            try:
                self._batch = next(self._iterator)
            except StopIteration:
                raise self._ended(address) from None
            self._next_index += 1
        return self._batch

    def _ended(self, address: BatchAddress) -> DataOrderError:
        announced = "" if self._num_batches is None else f" (its length says {self._num_batches})"
        roots = "" if address.num_batches is None else f", whose loader has {address.num_batches}"
        once = self._next_index == 0 and isinstance(self._loader, Iterator)
        return DataOrderError(
            f"{self._name} ended after {self._next_index} batches{announced}, but batch "
            f"{address.index} of epoch {address.epoch} came from the root{roots}",
            hint="pass a loader, not an iterator: it can be read once only, and every epoch "
            "reads it from its start"
            if once
            else "use the same dataset, batch size and drop_last on root and leaf",
        )

    def _compare_lengths(self, num_batches: int | None) -> None:
        """Says at the first batch what lengths that differ will lead to."""
        own, self._has_compared = self._num_batches, True
        if own is None or num_batches is None or own == num_batches:
            return
        logger.warning(
            "%s has %d batches, the root's loader %d: %s",
            self._name,
            own,
            num_batches,
            f"the last {own - num_batches} will not be used, and their samples not be trained on"
            if own > num_batches
            else f"the run will end with an error at batch {own}, unless the root stops before it",
        )

    def _begin(self, address: BatchAddress) -> None:
        if not self._has_compared:
            self._compare_lengths(address.num_batches)
        if address.after_whole_pass:
            # A shuffling sampler draws once more from its generator when it is read to its end. The
            # root's has done so, and the next order depends on it.
            for _ in self._iterator:
                pass
        if address.loader_epoch is not None:
            set_epoch(self._loader, address.loader_epoch)
        self._epoch, self._next_index, self._batch = address.epoch, 0, None
        self._iterator = iter(self._loader)


class TensorLabels(LabelSource):
    """Targets out of one tensor of all targets, in the root's order; yields `(None, slice)`."""

    def __init__(self, targets: torch.Tensor, name: str, owner: str) -> None:
        self._targets = targets
        self._name = f"`{name}` of {owner}"

    def batch(self, address: BatchAddress) -> tuple[None, torch.Tensor]:
        start = address.index * (address.batch_size or address.num_samples)
        targets = self._targets[start : start + address.num_samples]
        if len(targets) != address.num_samples:
            raise DataOrderError(
                f"{self._name} has {len(self._targets)} targets, but batch {address.index} needs "
                f"those from {start} to {start + address.num_samples}",
                hint="pass the targets of the whole dataset, in the root's order",
            )
        return (None, targets)


def length_of(loader: Any) -> int | None:
    """Batches in a loader, None when it cannot say."""
    try:
        return len(loader)
    except TypeError:
        return None


def set_epoch(loader: Any, epoch: int) -> None:
    """Tells a loader and its samplers which epoch begins, where they shuffle by its number."""
    for owner in _epoch_keepers(loader):
        owner.set_epoch(epoch)


def epoch_of(loader: Any) -> int | None:
    """What was told last to the first of them that says so; None when none does."""
    found = (getattr(owner, "epoch", None) for owner in _epoch_keepers(loader))
    return next((epoch for epoch in found if isinstance(epoch, int)), None)


def _epoch_keepers(loader: Any) -> list[Any]:
    parts = [getattr(loader, name, None) for name in ("sampler", "batch_sampler", "dataset")]
    return [each for each in (loader, *parts) if callable(getattr(each, "set_epoch", None))]


def label_source(labels: Any, name: str, owner: str = "the leaf") -> LabelSource | None:
    """The source for what a user passed as `labels` or `test_labels`; None when left out.

    Args:
        owner: whose it is, for errors.
    """
    if labels is None:
        return None
    if isinstance(labels, torch.Tensor):
        return TensorLabels(labels, name, owner)
    if isinstance(labels, Iterable) and not isinstance(labels, (str, bytes)):
        return LoaderLabels(labels, name, owner)
    raise ConfigError(
        f"{name} is a {type(labels).__name__}, expected a DataLoader or a tensor of all targets"
    )
