"""A second run has the bits of the first, whatever the order in which messages arrive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from delaying_network import DelayingNetwork
from node_harness import Run, make_plan, run_cleanly
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer
from ravnest.stage.schedule import Schedule

PATTERNS = int(os.environ.get("RAVNEST_DELAY_PATTERNS", "12"))
STAGES, FREQUENCY, BATCH = 3, 3, 3
X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 6, (24,), generator=torch.Generator().manual_seed(1))


class Net(torch.nn.Module):
    """Dropout everywhere, BatchNorm, and one weight on the first and on the last stage."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(3))
        self.drop = torch.nn.Dropout(0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.norm(self.first(x)))
        for layer in self.layers:
            x = x + self.drop(torch.tanh(layer(x)))
        return F.linear(self.drop(x), self.first.weight)


def build() -> Net:
    torch.manual_seed(0)
    return Net()


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return F.cross_entropy(predictions, targets[1])


def train(node: Node) -> dict[str, torch.Tensor]:
    """Trains; everything that the node ends with, optimizer state included."""
    loader = DataLoader(TensorDataset(X, Y), batch_size=BATCH)
    Trainer(node, train_loader=loader, epochs=2).train()
    engine = node._parts.engine
    states = engine.optimizer_tensors()
    flat = {f"{name}/{key}": t for name, each in states.items() for key, t in each.items()}
    return {name: t.clone() for name, t in (engine.saved_state() | flat).items()}


def run_once(plan: Run, schedule: str, seed: int | None) -> tuple[dict[int, Any], str, int]:
    """Results by node, losses, and how many messages overtook others."""
    network = None if seed is None else DelayingNetwork(seed)
    run = run_cleanly(
        Run(plan.folder, plan.plan), train, network=network,
        optimizer=torch.optim.AdamW, optimizer_params={"lr": 0.02}, criterion=criterion,
        schedule=schedule, update_frequency=FREQUENCY, seed=7,
    )  # fmt: skip
    losses = (plan.folder / "losses.txt").read_text()
    return run.results, losses, network.num_overtaken if network else 0


def assert_same(one: dict[int, Any], other: dict[int, Any]) -> None:
    assert one.keys() == other.keys()
    for node, tensors in one.items():
        assert tensors.keys() == other[node].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, other[node][name]), (node, name)


@pytest.mark.parametrize("schedule", list(map(str, Schedule)))
def test_delays_change_no_bit(
    schedule: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = make_plan(tmp_path, build(), (X[:BATCH],), nodes=STAGES)
    assert any(stage.replicas for stage in plan.plan.stages)
    first, losses, _ = run_once(plan, schedule, None)
    overtaken = 0
    for seed in range(PATTERNS):
        again, other_losses, more = run_once(plan, schedule, seed)
        assert_same(first, again)
        assert other_losses == losses
        overtaken += more
        capfd.readouterr()  # progress lines
    assert overtaken >= PATTERNS, "no message was ever late"
