"""Training in one process, in as few lines of plain PyTorch as it takes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from benchmarks.oracle.apart import Uses, UsesApart
from benchmarks.oracle.cases import (
    DECAY,
    LR,
    MOMENTUM,
    WEIGHT_DECAY,
    Case,
    Epochs,
    loss_of,
    model_of,
    split_call,
)
from benchmarks.oracle.outcome import Outcome, WithoutDropout
from benchmarks.zoo.entry import Call, Entry


def train_plainly(
    entry: Entry,
    case: Case,
    epochs: Epochs,
    uses: Uses | None = None,
    max_norm: float | None = None,
) -> Outcome:
    """20 optimizer steps on the original model.

    Args:
        uses: of shared parameters, whose gradients are then summed apart and added before the
            step; see `apart`.
        max_norm: what gradients are clipped to where the case clips; None for half the norm of the
            first step's.
    """
    model = model_of(entry, case)
    named = dict(model.named_parameters())
    trained = [each for each in named.values() if each.requires_grad]
    summed_apart = UsesApart(model, uses or {})
    optimizer = torch.optim.SGD(trained, lr=LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY if case.decays else 1.0)
    outcome = Outcome(max_norm=max_norm)
    for batches in epochs:
        for microbatches in steps_of(batches, case):
            # A script's own derivatives draw masks in their own way, once it is optimized.
            with WithoutDropout(), torch.jit.optimized_execution(False):
                losses = [_train_on(model, *call, share) for call, share in microbatches]
            summed_apart.gather()
            if case.clips:
                _clip(trained, case, outcome)
            outcome.losses.append(sum(losses))
            _note_gradients(named, outcome)
            optimizer.step()
            summed_apart.spread()
            optimizer.zero_grad()
            if case.decays == "step":
                scheduler.step()
        if case.decays == "epoch":
            scheduler.step()
    outcome.weights = {n: each.detach().clone() for n, each in named.items()}
    persistent = model.state_dict().keys()
    outcome.buffers = {n: b.clone() for n, b in model.named_buffers() if n in persistent}
    return outcome


def steps_of(batches: Sequence[Call], case: Case) -> Iterator[list[tuple[Call, float]]]:
    """The microbatches of each optimizer step of an epoch, with their parts of their batches."""
    for start in range(0, len(batches), case.update_frequency):
        group = copy.deepcopy(batches[start : start + case.update_frequency])
        yield [part for batch in group for part in split_call(batch, case.num_microbatches)]


def _train_on(model: torch.nn.Module, args: Any, kwargs: Any, share: float) -> float:
    loss = loss_of(model(*args, **kwargs)) * share
    loss.backward()
    return loss.item()


def _clip(trained: list[torch.nn.Parameter], case: Case, outcome: Outcome) -> None:
    if outcome.max_norm is None:
        gradients = [each.grad for each in trained if each.grad is not None]
        outcome.max_norm = float(torch.nn.utils.get_total_norm(gradients, case.norm_type)) / 2
    norm = torch.nn.utils.clip_grad_norm_(trained, outcome.max_norm, case.norm_type)
    outcome.num_clipped += bool(norm > outcome.max_norm)


def _note_gradients(named: Mapping[str, torch.nn.Parameter], outcome: Outcome) -> None:
    outcome.gradients = {
        name: each.grad.clone() for name, each in named.items() if each.grad is not None
    }
