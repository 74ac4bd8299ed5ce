"""Where a plan lets stages start more microbatches, they do, and the numbers stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.plan.files import load_node_plan

BATCH, NUM_MICROBATCHES = 24, 8
X = torch.randn(4 * BATCH, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (4 * BATCH,), generator=torch.Generator().manual_seed(1))


class Net(torch.nn.Module):
    """With BatchNorm, whose statistics show the order of forward passes, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(6))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(6) for _ in range(6))
        self.drop = torch.nn.Dropout(0.2)
        self.last = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + self.drop(torch.tanh(norm(layer(x))))
        return self.last(x)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def train(node: Node) -> int:
    """The most microbatches that were in flight on this stage."""
    most = 0
    forward = node._parts.engine.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal most
        results = forward(*args, **kwargs)
        most = max(most, node._parts.engine.num_in_flight)
        return results

    node._parts.engine.forward = counted  # type: ignore[method-assign]
    loader = DataLoader(TensorDataset(X, Y), batch_size=BATCH)
    Trainer(node, train_loader=loader, epochs=2, save=True).train()
    return most


def trained(
    folder: Path, schedule: str, **benchmarks: float
) -> tuple[Run, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    run = make_plan(folder, Net(), (X[:3],), **benchmarks)
    run_cleanly(
        run,
        train,
        seed=5,
        schedule=schedule,
        num_microbatches=NUM_MICROBATCHES,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": 0.01},
        criterion=criterion,
    )
    return run, model_fusion(node_data=run.folder / "node_data", trained=run.folder / "trained")


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "2bw", "async"])
def test_links_with_delays_have_more_in_flight(schedule: str, tmp_path: Path) -> None:
    far, state = trained(tmp_path / "far", schedule, latency=50.0)
    near, expected = trained(tmp_path / "near", schedule, flops=1e-6)
    nodes = far.plan.clusters[0]
    slacks = [load_node_plan(far.folder / "node_data", node).slack for node in nodes]
    assert slacks[0] > 0
    assert slacks[-1] == 0
    most = [far.result_of(stage) for stage in range(3)]
    assert most[0] == max(most) > near.result_of(0)
    assert most[2] == near.result_of(2), "a leaf awaits no gradient"
    if schedule == "async":  # some of its microbatches meet other weights
        assert not all(torch.equal(state[name], expected[name]) for name in expected)
    else:
        assert all(torch.equal(state[name], expected[name]) for name in expected)
