"""Evaluation in the middle of an epoch uses the weights of one step on every stage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion

X = torch.randn(44, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (44,), generator=torch.Generator().manual_seed(1))
PROBE = X[:7]


class Net(torch.nn.Module):
    """BatchNorm on the first stage, whose statistics only evaluation shows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))
        self.head = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def build() -> Net:
    torch.manual_seed(0)
    return Net()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=4)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


ADAM: dict[str, Any] = {
    "optimizer": torch.optim.Adam,
    "optimizer_params": {"lr": 0.05},
    "criterion": criterion,
    "delay_compensation": None,
}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_plan(tmp_path_factory.mktemp("planned"), build(), (X[:4],))


@pytest.fixture
def plan(planned: Run, tmp_path: Path) -> Run:
    """Three stages, planned once for all tests."""
    shutil.copytree(planned.folder / "node_data", tmp_path / "node_data")
    return Run(tmp_path, planned.plan)


class Probing(Trainer):
    """Asks for the model's output every so many batches, in the middle of an epoch."""

    every = 1
    saves = False

    def train(self) -> None:
        self.outputs: list[torch.Tensor] = []
        for _ in range(2):
            for number, (x, _) in enumerate(self.train_loader or (), 1):
                self.node.forward_compute(x)
                if self.every and number % self.every == 0:
                    self.outputs.append(self.node.no_grad_forward_compute(PROBE, "output"))
                    if self.saves and len(self.outputs) == 1:
                        self.node.trigger_save_submodel()
            self.node.wait_for_backwards()


def probe(node: Node, every: int, saves: bool = False) -> list[torch.Tensor]:
    trainer = Probing(node, train_loader=loader(), save=not saves)
    trainer.every, trainer.saves = every, saves
    trainer.train()
    return getattr(trainer, "outputs", [])


def reference(frequency: int, parts: int, every: int) -> tuple[Net, list[torch.Tensor]]:
    """Plain training, and the outputs in evaluation mode after every so many batches."""
    model = build()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    outputs = []
    for _ in range(2):
        for number, (x, y) in enumerate(loader(), 1):
            for rows in torch.arange(len(x)).tensor_split(parts):
                loss = criterion(model(x[rows]), (None, y[rows]))
                (loss * (len(rows) / len(x))).backward()
            if number % frequency == 0:
                optimizer.step()
                optimizer.zero_grad()
            if number % every == 0:
                outputs.append(evaluated(model))
        optimizer.step()  # of the group that lacks a batch
        optimizer.zero_grad()
    return model, outputs


def evaluated(model: torch.nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        output: torch.Tensor = model(PROBE)
    model.train()
    return output


def fused(run: Run) -> dict[str, torch.Tensor]:
    return model_fusion(node_data=run.folder / "node_data", trained=run.folder / "trained")


def assert_same_bits(run: Run, frequency: int, parts: int, every: int) -> None:
    model, expected = reference(frequency, parts, every)
    outputs = run.result_of(0)
    assert len(outputs) == len(expected)
    for ours, theirs in zip(outputs, expected, strict=True):
        assert torch.equal(ours, theirs)
    state = fused(run)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("schedule", "every"), [("1f1b", 1), ("1f1b", 3), ("zb-h1", 2)])
def test_with_a_flush_it_is_one_process_s_bit_by_bit(schedule: str, every: int, plan: Run) -> None:
    run_cleanly(
        plan,
        lambda node: probe(node, every),
        schedule=schedule,
        update_frequency=2,
        num_microbatches=2,
        **ADAM,
    )
    assert_same_bits(plan, frequency=2, parts=2, every=every)


def steps_before(events: Iterator[str]) -> int:
    number = 0
    for name in events:
        if name == "saved":
            return number
        number += name == "step"
    raise AssertionError("nothing was saved")


@pytest.mark.parametrize("schedule", ["2bw", "async"])
@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_without_a_flush_all_stages_are_at_one_step(
    schedule: str, max_norm: float | None, plan: Run
) -> None:
    """6 batches, 2 per step: 3 steps on every stage, and the outputs are of what they save."""
    run_cleanly(
        plan,
        lambda node: probe(node, 6, saves=True),
        schedule=schedule,
        update_frequency=2,
        num_microbatches=2,
        clip_grad_norm=max_norm,
        **ADAM,
    )
    for stage in plan.plan.stages:
        lines = (plan.folder / "events" / f"node_{stage.node_id}.jsonl").read_text().splitlines()
        names = (line.split('"event": "')[1].split('"')[0] for line in lines)
        assert steps_before(names) == 3
    model = build()
    model.load_state_dict(fused(plan))
    assert torch.equal(plan.result_of(0)[0], evaluated(model))


@pytest.mark.parametrize(
    ("schedule", "frequency", "every"),
    [("2bw", 2, 3), ("async", 1, 1), ("async", 2, 3), ("async", 2, 4)],
)
def test_training_goes_on_as_if_nothing_had_been(
    schedule: str, frequency: int, every: int, plan: Run
) -> None:
    """Microbatches after it meet the weights that they would have met, as late as those are."""
    found = []
    for asks in (0, every):
        options: dict[str, Any] = {"schedule": schedule, "update_frequency": frequency, **ADAM}
        run_cleanly(plan, lambda node, n=asks: probe(node, n), **options)
        found.append((fused(plan), (plan.folder / "losses.txt").read_text()))
    assert found[0][1] == found[1][1]
    assert all(torch.equal(found[0][0][name], value) for name, value in found[1][0].items())
    assert len(plan.result_of(0)) == 2 * (11 // every)
    stale = [event for node in plan.plan.stages for event in plan.events(node.node_id, "staleness")]
    assert any(name.startswith("stale_") and name != "stale_0" for each in stale for name in each)
