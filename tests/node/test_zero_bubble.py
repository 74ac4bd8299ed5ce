"""`zb-h1` trains as one process does, to the bit as `1f1b`, and really splits backward passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tied_harness as tied
import torch
from node_harness import Run, make_plan, run_cleanly
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion

X = torch.randn(45, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (45,), generator=torch.Generator().manual_seed(1))
BATCH = 3


class Net(torch.nn.Module):
    """Layers of all kinds that matter: a skip over several stages, BatchNorm, a weight used twice.

    Args:
        drop: share that dropout takes.
    """

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.middle = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
        self.scale = torch.nn.LayerNorm(8)
        self.last = torch.nn.Linear(8, 4)
        self.drop = torch.nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = x = torch.tanh(self.norm(self.first(x)))
        for layer in self.middle:
            x = x + self.drop(torch.tanh(layer(x)))
        x = self.middle[-1](self.scale(x) + skip)  # one weight from two places: no split there
        return self.last(x)


def build(drop: float = 0.0) -> Net:
    torch.manual_seed(0)
    return Net(drop)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=BATCH)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


ADAM: dict[str, Any] = {
    "optimizer": torch.optim.Adam,
    "optimizer_params": {"lr": 0.01, "eps": 1e-4},
    "criterion": criterion,
}


def reference(frequency: int, epochs: int = 2) -> tuple[Net, list[float]]:
    """Plain training; the model and the loss of every step."""
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)
    losses: list[float] = []
    for _ in range(epochs):
        batches = list(loader())
        total = 0.0
        for number, batch in enumerate(batches, 1):
            loss = criterion(model(batch[0]), batch)
            loss.backward()
            total += loss.item()
            if number % frequency == 0 or number == len(batches):
                optimizer.step()
                optimizer.zero_grad()
                losses.append(total)
                total = 0.0
    return model, losses


def fused(run: Run) -> dict[str, torch.Tensor]:
    return model_fusion(node_data=run.folder / "node_data", trained=run.folder / "trained")


def train(node: Node) -> int:
    """Trains; returns how many weight passes were made apart from their input pass."""
    engine, apart = node._parts.engine, 0
    complete = engine.backward_weight

    def counting(microbatch: Any) -> None:
        nonlocal apart
        apart += microbatch in engine._behind
        complete(microbatch)

    engine.backward_weight = counting  # type: ignore[method-assign]
    Trainer(node, train_loader=loader(), epochs=2, save=True).train()
    assert engine.num_in_flight == 0
    assert engine.weights.num_stashed == 0
    return apart


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("frequency", [1, 4, 7])
def test_zero_bubble_equals_plain_training(nodes: int, frequency: int, tmp_path: Path) -> None:
    """15 batches an epoch: with 4 or 7 of them a step, its last step has fewer."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=nodes)
    run_cleanly(run, train, schedule="zb-h1", update_frequency=frequency, **ADAM)
    expected, losses = reference(frequency)
    found = fused(run)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0, msg=name)
    written = [float(line) for line in (tmp_path / "losses.txt").read_text().split()]
    assert written == pytest.approx(losses, abs=1e-6)
    apart = [run.results[node] for node in run.plan.clusters[0]]
    assert apart[0] == 0, "the root has nobody to send gradients to"
    assert set(apart[1:]) <= {0, 30}
    # Of two stages the second has the weight that is used twice.
    assert nodes <= 2 or 30 in apart, "no stage has split a backward pass"


@pytest.mark.parametrize("recompute", [False, True])
def test_zero_bubble_and_1f1b_have_the_same_bits(recompute: bool, tmp_path: Path) -> None:
    states = []
    for schedule in ("1f1b", "zb-h1"):
        run = make_plan(tmp_path / schedule, build(0.3), (X[:BATCH],), nodes=4)
        run_cleanly(
            run, train, schedule=schedule, update_frequency=5, seed=3, recompute=recompute, **ADAM
        )
        states.append(fused(run))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("kind", [tied.TiedGpt, tied.Albert])
def test_parameters_of_several_stages(kind: Callable[[], Any], tmp_path: Path) -> None:
    run = make_plan(tmp_path, tied.build(kind), (tied.X[: tied.BATCH],), nodes=4)
    run_cleanly(
        run,
        lambda n: tied.train(n, epochs=2),
        schedule="zb-h1",
        update_frequency=3,
        **tied.SETTINGS,
    )
    tied.assert_equal(run, tied.reference(3, epochs=2, kind=kind))


def test_empty_microbatches_pass_through(tmp_path: Path) -> None:
    """Batches of 3 in four microbatches: one of them has no sample."""

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    torch.manual_seed(0)
    model = Plain()
    run = make_plan(tmp_path, model, (X[:BATCH],), nodes=3)
    run_cleanly(run, train, schedule="zb-h1", num_microbatches=4, **ADAM)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4)
    for batch in [*loader(), *loader()]:
        criterion(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = fused(run)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0, msg=name)
