"""What is switched on in a comparison, and the batches it trains on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.zoo.entry import Call, Entry
from ravnest.plan.structure import flatten, unflatten

Epochs = list[list[Call]]

NUM_EPOCHS = 2
STEPS_PER_EPOCH = 10
LR, MOMENTUM, WEIGHT_DECAY, DECAY = 0.02, 0.9, 0.01, 0.9
TOLERANCE = 1e-6
BFLOAT16_TOLERANCE = 1e-2


@dataclass(frozen=True)
class Case:
    """One way of training.

    Attributes:
        clips: gradients are clipped to half the norm of the first step's.
        decays: what a scheduler counts, "step" or "epoch"; None for no scheduler.
        update_frequency: batches per optimizer step; the last group of an epoch lacks one.
        num_microbatches: parts of every batch, which they do not divide.
        has_partial_batches: an epoch's last batch is smaller.
        changes_length: from batch to batch, where a model takes sequences.
        draws: with dropout, compared with one stage; without, with one process.
        dtype: of weights and floating inputs.
    """

    name: str
    clips: bool = False
    norm_type: float = 2.0
    decays: str | None = None
    update_frequency: int = 1
    num_microbatches: int = 1
    has_partial_batches: bool = False
    changes_length: bool = False
    draws: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def tolerance(self) -> float:
        """Largest difference that counts as equal."""
        return BFLOAT16_TOLERANCE if self.dtype is torch.bfloat16 else TOLERANCE


_ALL: dict[str, Any] = {
    "clips": True,
    "decays": "step",
    "update_frequency": 2,
    "num_microbatches": 2,
    "has_partial_batches": True,
    "changes_length": True,
}
CASES = (
    Case("plain"),
    Case("clipping", clips=True),
    Case("clipping by the largest value", clips=True, norm_type=float("inf")),
    Case("scheduler per step", decays="step"),
    Case("scheduler per epoch", decays="epoch"),
    Case("accumulation over batches", update_frequency=3),
    Case("accumulation over microbatches", num_microbatches=2),
    Case("partial last batches", has_partial_batches=True),
    Case("changing lengths", changes_length=True),
    Case("all of these", **_ALL),
    Case("dropout", draws=True, num_microbatches=2),
    Case("bfloat16", dtype=torch.bfloat16),
    Case("bfloat16, clipping", dtype=torch.bfloat16, clips=True),
    Case("bfloat16, scheduler per step", dtype=torch.bfloat16, decays="step"),
    Case("bfloat16, accumulation over batches", dtype=torch.bfloat16, update_frequency=3),
    Case("bfloat16, accumulation over microbatches", dtype=torch.bfloat16, num_microbatches=2),
    Case("bfloat16, partial last batches", dtype=torch.bfloat16, has_partial_batches=True),
    Case("bfloat16, changing lengths", dtype=torch.bfloat16, changes_length=True),
    Case("bfloat16, all of these", dtype=torch.bfloat16, **_ALL),
)
QUICK_CASES = ("all of these", "dropout", "bfloat16")


_ONLY_FLOAT32 = frozenset({"autocast region"})
"""Models that in bfloat16 do not run in plain PyTorch either."""


def applies(case: Case, entry: Entry) -> bool:
    """Whether the model has what the case switches on."""
    only_length = case.name.endswith("changing lengths")
    if only_length and entry.other_length is None:
        return False
    is_half = any(each.dtype is torch.bfloat16 for each in entry.small_model().parameters())
    if case.dtype is torch.bfloat16:
        return entry.name not in _ONLY_FLOAT32
    return not is_half


def model_of(entry: Entry, case: Case) -> torch.nn.Module:
    """The model of a comparison, with repeatable weights."""
    model = entry.small_model()
    return model if case.dtype is torch.float32 else model.to(case.dtype)


def example_of(entry: Entry, case: Case) -> Call:
    """The call that the model is captured with."""
    return _cast(entry.calls()["example"], case.dtype)


def epochs_of(entry: Entry, case: Case) -> Epochs:
    """The batches of every epoch; made before nodes draw from the generators of this process."""
    return [list(_batches_of(entry, case, epoch)) for epoch in range(NUM_EPOCHS)]


def _batches_of(entry: Entry, case: Case, epoch: int) -> Iterator[Call]:
    total = STEPS_PER_EPOCH * case.update_frequency - (case.update_frequency - 1)
    for index in range(total):
        samples = entry.batch
        if case.num_microbatches > 1:
            samples = max(samples, 2 * case.num_microbatches)  # BatchNorm needs two each
            samples += (samples + 1) % case.num_microbatches  # so that they do not divide it
        if case.has_partial_batches and index == total - 1:
            samples -= 1
        length = entry.length
        if case.changes_length and entry.other_length is not None and index % 2:
            length = entry.other_length + index
        torch.manual_seed(1000 * epoch + index)
        yield _cast(entry.call(samples, length), case.dtype)


def split_call(call: Call, num_microbatches: int) -> list[tuple[Call, float]]:
    """The microbatches of a batch, with their parts of its samples."""
    if num_microbatches == 1:
        return [(call, 1.0)]
    leaves, structure = flatten(call)
    total = next(len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor))
    columns = [
        torch.tensor_split(leaf, num_microbatches)
        if isinstance(leaf, torch.Tensor) and len(leaf) == total
        else [leaf] * num_microbatches
        for leaf in leaves
    ]
    sizes = [len(part) for part in torch.tensor_split(torch.arange(total), num_microbatches)]
    rows = zip(*columns, strict=True)
    return [
        (unflatten(structure, list(row)), size / total)
        for row, size in zip(rows, sizes, strict=True)
    ]


def loss_of(predictions: Any, _: Any = None) -> torch.Tensor:
    """How far every output with a gradient is from a fixed pattern; bounded from below."""
    total = torch.zeros(())
    for index, leaf in enumerate(flatten(predictions)[0]):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            flat = leaf.float().flatten()
            pattern = torch.cos(1.3 * torch.arange(len(flat)) + index)
            total = total + torch.nn.functional.huber_loss(flat, pattern)
    return total


def _cast(call: Call, dtype: torch.dtype) -> Call:
    leaves, structure = flatten(call)
    cast = [
        leaf.to(dtype) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
        for leaf in leaves
    ]
    made: Call = unflatten(structure, cast)
    return made
