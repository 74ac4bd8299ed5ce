"""The batch that the root is working on: its number, what of it is shipped, its frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ravnest.node.fingerprint import fingerprint
from ravnest.node.ledger import Run
from ravnest.node.microbatches import Rows
from ravnest.plan.identity import MicrobatchId
from ravnest.plan.structure import flatten, unflatten
from ravnest.stage.program import Value
from ravnest.wire.frame import Frame, FrameKind


@dataclass(frozen=True, slots=True)
class CurrentBatch:
    """A batch as a loader yielded it.

    Attributes:
        index: its number in the loader, before batches were dealt out to clusters.
        batch: the whole batch, in the loader's own type.
        batch_size: samples of a full batch, None when unknown.
        after_whole_pass: whether the pass over the loader before this one was read to its end.
        num_batches: of the whole loader, None when unknown.
        loader_epoch: what the loader's order depends on, None when it is not told; see `set_epoch`.
    """

    index: int
    batch: Any
    batch_size: int | None
    after_whole_pass: bool = True
    num_batches: int | None = None
    loader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class UntrainedBatches:
    """What a loader had in an epoch and the script did not train on.

    Attributes:
        skipped: batches that were yielded and not taken.
        unread: batches after the last one yielded.
        cut_off: samples, by their position in the sampler's order, that make no full batch.
    """

    skipped: tuple[Run, ...] = ()
    unread: tuple[Run, ...] = ()
    cut_off: tuple[Run, ...] = ()


class BatchCursor(Protocol):
    """Where a loader stands; the trainer's loaders are such cursors."""

    def take(self) -> CurrentBatch | None:
        """The batch yielded last, None when nothing was yielded; TrainingError when taken twice."""

    def take_untrained(self) -> UntrainedBatches:
        """What was not trained since it was last asked."""

    def loader_state(self) -> Any:
        """Where the loader stands, for its `load_state_dict`; None when it has none."""


def shipped_targets(batch: Any, inputs: Sequence[Any]) -> Any:
    """What of a batch travels to the leaf as targets.

    Tensors that are model inputs are left out (None stands in their place, as when `labels` is a
    tensor), unless nothing would remain: a language model's inputs are its targets too.
    """
    leaves, structure = flatten(batch)
    is_input = [any(leaf is value for value in inputs) for leaf in leaves]
    tensors = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    if not any(tensor and not used for tensor, used in zip(tensors, is_input, strict=True)):
        return batch
    kept = [None if used else leaf for leaf, used in zip(leaves, is_input, strict=True)]
    return unflatten(structure, kept)


def targets_frame(microbatch: MicrobatchId, targets: Any) -> Frame:
    """A TARGETS frame; leaves that are neither tensors nor plain values are left out.

    Tensors are copied: the frame is sent while the script may already fill its buffers anew.
    """
    leaves, structure = flatten(targets)
    tensors = {
        str(i): leaf.detach().clone()
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
    }
    scalars = {
        str(i): leaf if isinstance(leaf, (bool, int, float, str)) else None
        for i, leaf in enumerate(leaves)
        if str(i) not in tensors
    }
    return Frame(
        FrameKind.TARGETS,
        microbatch,
        tensors=tensors,
        scalars=scalars,
        details={"structure": structure},
    )


def batch_frame(
    kind: FrameKind,
    microbatch: MicrobatchId,
    inputs: Mapping[str, Value],
    current: CurrentBatch | None,
    rows: Rows,
    *,
    batch: int,
    **details: Any,
) -> Frame:
    """The frame a microbatch starts with on the root; only a batch's first has its fingerprint.

    Args:
        batch: its batch's number in the epoch, for a batch that comes from no known loader.
    """
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    fingerprinted = current.batch if current is not None else list(tensors.values())
    is_first = rows.start == 0
    return Frame(
        kind,
        microbatch,
        tensors=tensors,
        scalars={name: value for name, value in inputs.items() if name not in tensors},
        details={
            "batch": batch if current is None else current.index,
            "batch_size": None if current is None else current.batch_size,
            "after_whole_pass": current is None or current.after_whole_pass,
            "num_batches": None if current is None else current.num_batches,
            "loader_epoch": None if current is None else current.loader_epoch,
            "num_samples": rows.num_samples,
            "fingerprint": fingerprint(fingerprinted) if is_first else [],
            **rows.details(),
            **details,
        },
    )


def num_samples_of(tensors: Any) -> int:
    """Samples in a microbatch: the first dimension of its first tensor that has one."""
    for tensor in tensors:
        if tensor.dim() > 0:
            return int(tensor.shape[0])
    return 1
