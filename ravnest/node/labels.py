"""Where the leaf's targets come from: its own loader, a tensor of all of them, or the root.

Targets are addressed by the number of the batch, never by how often an iterator was called.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.errors import ConfigError, DataOrderError


@dataclass(frozen=True, slots=True)
class BatchAddress:
    """Which batch of the data a microbatch is.

    Attributes:
        epoch: of the run, or number of the evaluation pass.
        index: number of the batch in the loader, before it is dealt out to clusters.
        num_samples: samples in the batch.
        batch_size: samples of a full batch, None when the root does not know.
        after_whole_pass: whether the root read its loader to the end in the epoch before.
    """

    epoch: int
    index: int
    num_samples: int
    batch_size: int | None
    after_whole_pass: bool = True


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

    def __init__(self, loader: Iterable[Any], name: str) -> None:
        self._loader = loader
        self._name = name
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
                f"batch {address.index} of epoch {address.epoch} was asked of `{self._name}` "
                f"after batch {self._next_index - 1}; batches must be asked for in order",
            )
        while self._next_index <= address.index:
            try:
                self._batch = next(self._iterator)
            except StopIteration:
                raise DataOrderError(
                    f"`{self._name}` of the leaf ended after {self._next_index} batches, but the "
                    f"root sent batch {address.index} of epoch {address.epoch}",
                    hint="use the same dataset and batch size on root and leaf",
                ) from None
            self._next_index += 1
        return self._batch

    def _begin(self, address: BatchAddress) -> None:
        if address.after_whole_pass:
            # A shuffling sampler draws once more from its generator when it is read to its end. The
            # root's has done so, and the next order depends on it.
            for _ in self._iterator:
                pass
        self._epoch, self._next_index, self._batch = address.epoch, 0, None
        self._iterator = iter(self._loader)


class TensorLabels(LabelSource):
    """Targets out of one tensor of all targets, in the root's order; yields `(None, slice)`."""

    def __init__(self, targets: torch.Tensor, name: str) -> None:
        self._targets = targets
        self._name = name

    def batch(self, address: BatchAddress) -> tuple[None, torch.Tensor]:
        start = address.index * (address.batch_size or address.num_samples)
        targets = self._targets[start : start + address.num_samples]
        if len(targets) != address.num_samples:
            raise DataOrderError(
                f"`{self._name}` has {len(self._targets)} targets, but batch {address.index} needs "
                f"those from {start} to {start + address.num_samples}",
                hint="pass the targets of the whole dataset, in the root's order",
            )
        return (None, targets)


def label_source(labels: Any, name: str) -> LabelSource | None:
    """The source for what a user passed as `labels` or `test_labels`; None when left out."""
    if labels is None:
        return None
    if isinstance(labels, torch.Tensor):
        return TensorLabels(labels, name)
    if isinstance(labels, Iterable) and not isinstance(labels, (str, bytes)):
        return LoaderLabels(labels, name)
    raise ConfigError(
        f"{name} is a {type(labels).__name__}, expected a DataLoader or a tensor of all targets"
    )
