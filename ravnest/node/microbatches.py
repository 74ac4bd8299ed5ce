"""One loader batch as several microbatches: what of it goes into each, and what each counts for.

A batch always makes the same number of microbatches, so that every stage knows from counts alone
when to step. One with fewer samples than that makes empty ones, which pass through the stages
without being computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.capture.signature import DynamicDim, InputSignature
from ravnest.errors import TrainingError
from ravnest.wire.frame import Frame

_DETAIL = "rows"


@dataclass(frozen=True, slots=True)
class Rows:
    """Which samples of its batch a microbatch has: `start` to `stop` of `total`."""

    start: int
    stop: int
    total: int

    @property
    def num_samples(self) -> int:
        """Samples in the microbatch."""
        return self.stop - self.start

    @property
    def share(self) -> float:
        """Part of the batch, 0 to 1."""
        return self.num_samples / max(self.total, 1)

    @property
    def is_whole(self) -> bool:
        """Whether the microbatch is the whole batch."""
        return self.num_samples == self.total

    def details(self) -> dict[str, Any]:
        """As plain data, for the microbatch's frame."""
        return {_DETAIL: [self.start, self.stop, self.total]}

    @classmethod
    def of(cls, frame: Frame) -> Rows:
        """What the root said in the frame of a microbatch."""
        start, stop, total = frame.details[_DETAIL]
        return cls(int(start), int(stop), int(total))


def whole_batch(num_samples: int) -> Rows:
    """A batch as one microbatch."""
    return Rows(0, num_samples, num_samples)


def deal_rows(total: int, num_microbatches: int, smallest: int = 1) -> list[Rows]:
    """As even as can be, the larger ones first: 10 samples in 4 are 3, 3, 2 and 2.

    Args:
        smallest: samples that a microbatch has at least, unless it is empty; empty ones are last.
    """
    num_filled = max(min(num_microbatches, total // smallest), 1)
    size, larger = divmod(total, num_filled)
    stops = [(i + 1) * size + min(i + 1, larger) for i in range(num_filled)]
    stops += [total] * (num_microbatches - num_filled)
    return [Rows(start, stop, total) for start, stop in zip((0, *stops), stops, strict=False)]


def split_inputs(
    signature: InputSignature, inputs: Mapping[str, torch.Tensor], num_microbatches: int
) -> list[tuple[Rows, dict[str, torch.Tensor]]]:
    """The inputs of each microbatch; tensors share the batch's memory.

    Split are the tensors whose first dimension is open in the captured graph and as long as that
    of the first such tensor; the others (a mask for all samples, say) go along whole.

    Raises:
        TrainingError: the graph was captured for one batch size only.
    """
    firsts = {
        leaf.name: leaf.shape[0]
        for leaf in signature.tensors
        if leaf.shape and isinstance(leaf.shape[0], DynamicDim)
    }
    if not firsts:
        raise TrainingError(
            f"a batch cannot be split into num_microbatches={num_microbatches}: the model was "
            "captured for exactly the example's sizes",
            hint=f"make the loader's batches {num_microbatches} times as small, update_frequency "
            f"{num_microbatches} times as high, and leave num_microbatches out",
        )
    total = len(inputs[next(iter(firsts))])
    per_sample = {name: dim for name, dim in firsts.items() if len(inputs[name]) == total}
    smallest = max(1, *(dim.minimum for dim in per_sample.values()))
    return [
        (
            rows,
            {
                name: tensor[rows.start : rows.stop] if name in per_sample else tensor
                for name, tensor in inputs.items()
            },
        )
        for rows in deal_rows(total, num_microbatches, smallest)
    ]


def take_rows(batch: Any, rows: Rows) -> Any:
    """The targets of a microbatch, in the batch's own types.

    Tensors, and lists of other things than containers, are cut where they are as long as the batch;
    all else goes along whole.
    """
    if rows.is_whole:
        return batch
    if isinstance(batch, torch.Tensor):
        is_per_sample = batch.dim() > 0 and len(batch) == rows.total
        return batch[rows.start : rows.stop] if is_per_sample else batch
    if isinstance(batch, Mapping):
        return _like(batch, {key: take_rows(value, rows) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(take_rows(value, rows) for value in batch))
    if isinstance(batch, (list, tuple)):
        if _is_per_sample(batch, rows):
            return batch[rows.start : rows.stop]
        return type(batch)(take_rows(value, rows) for value in batch)
    return batch


def _is_per_sample(batch: Sequence[Any], rows: Rows) -> bool:
    """Whether a list has one plain value (a file name, a caption) for every sample."""
    containers = (torch.Tensor, Mapping, list, tuple)
    return len(batch) == rows.total and not any(isinstance(value, containers) for value in batch)


def _like(original: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    make: Callable[[dict[Any, Any]], Any] = type(original)  # a tokenizer's batch has methods
    try:
        return make(values)
    except TypeError:
        return values
