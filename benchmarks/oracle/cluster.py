"""Training over the stages of a plan: real nodes in threads, over the in-memory transport."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.oracle.cases import (
    DECAY,
    LR,
    MOMENTUM,
    WEIGHT_DECAY,
    Case,
    Epochs,
    example_of,
    loss_of,
    model_of,
)
from benchmarks.oracle.outcome import Outcome, WithoutDropout
from benchmarks.processes import write_loopback_nodes
from benchmarks.zoo.entry import Entry
from ravnest import Node, Trainer, clusterize
from ravnest.plan.model import Plan
from ravnest.stage.schedule import Schedule
from ravnest.transport.interface import TransportSettings
from ravnest.transport.memory import MemoryNetwork

TIMEOUT_S = 300


@dataclass(frozen=True)
class Cut:
    """A model cut into stages, in a folder."""

    folder: Path
    plan: Plan


def cut_model(entry: Entry, case: Case, num_stages: int, folder: Path) -> Cut:
    """Plans one cluster of `num_stages` nodes.

    Raises:
        RavnestError: the model has fewer legal cuts, say.
    """
    node_data = folder / "node_data"
    node_data.mkdir(parents=True)
    write_loopback_nodes(node_data, num_stages, memory_gb=64)
    args, kwargs = example_of(entry, case)
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(
            model_of(entry, case),
            args,
            kwargs,
            node_data=node_data,
            num_clusters=1,
            leaves=entry.leaves,
            self_test=False,
        )
    return Cut(folder, plan)


class Feeding(Trainer):
    """Feeds the batches of a case."""

    def __init__(self, node: Node, epochs: Epochs) -> None:
        super().__init__(node)
        self._epochs = epochs

    def train(self) -> None:
        """All epochs."""
        self.prelim_checks()
        for batches in self._epochs:
            for args, kwargs in copy.deepcopy(batches):
                self.node.forward_compute(args, **kwargs)
            self.node.wait_for_backwards()


def train_over_stages(
    cut: Cut,
    entry: Entry,
    case: Case,
    epochs: Epochs,
    schedule: Schedule,
    max_norm: float | None = None,
) -> Outcome:
    """20 optimizer steps on the stages of a plan.

    Args:
        max_norm: what gradients are clipped to where the case clips.
    """
    network, outcome = MemoryNetwork(), Outcome(max_norm=max_norm)
    errors: list[BaseException] = []
    nodes: dict[int, tuple[torch.nn.Module, dict[str, torch.Tensor]]] = {}

    def work(node_id: int) -> None:
        try:
            transport = network.transport(node_id, TransportSettings(timeout_s=TIMEOUT_S))
            gradients: dict[str, torch.Tensor] = {}
            mode = contextlib.nullcontext() if case.draws else WithoutDropout()
            options = _options(cut, entry, case, schedule, max_norm)
            with mode, Node(f"node_{node_id}", transport=transport, **options) as node:
                _note_gradients(node, gradients)
                Feeding(node, epochs).train()
                nodes[node_id] = (node.model, gradients)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=work, args=(stage.node_id,), name=f"node_{stage.node_id}")
        for stage in cut.plan.stages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    losses = (cut.folder / "losses.txt").read_text().split()
    outcome.losses = [float(line) for line in losses]
    for stage in cut.plan.stages:
        module, gradients = nodes[stage.node_id]
        outcome.gradients |= gradients
        outcome.weights |= {n: each.detach() for n, each in module.named_parameters()}
        outcome.buffers |= {n: b for n, b in module.named_buffers() if n in stage.buffers}
    return outcome


def _options(
    cut: Cut, entry: Entry, case: Case, schedule: Schedule, max_norm: float | None
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "node_data": cut.folder / "node_data",
        "trained": cut.folder / "trained",
        "events": cut.folder / "events",
        "loss_filename": cut.folder / "losses.txt",
        "val_filename": cut.folder / "validations.txt",
        "schedule": str(schedule),
        "optimizer": torch.optim.SGD,
        "optimizer_params": {"lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY},
        "criterion": loss_of,
        "update_frequency": case.update_frequency,
        "num_microbatches": case.num_microbatches,
        "trusted_modules": tuple(entry.leaves.values()),
        "seed": 3,
    }
    if case.clips:
        options |= {"clip_grad_norm": max_norm, "clip_norm_type": case.norm_type}
    if case.decays is not None:
        options |= {
            "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR,
            "lr_scheduler_params": {"gamma": DECAY},
            "lr_step_on_epoch_change": case.decays == "epoch",
        }
    return options


def _note_gradients(node: Node, gradients: dict[str, torch.Tensor]) -> None:
    """Keeps in `gradients` what the optimizer saw at its last step."""
    if node.optimizer is None:
        return
    names = {id(each): name for name, each in node.model.named_parameters()}

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients.clear()
        for each in _parameters(optimizer):
            if each.grad is not None:
                gradients[names[id(each)]] = each.grad.clone()

    node.optimizer.register_step_pre_hook(note)


def _parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    return (each for group in optimizer.param_groups for each in group["params"])
