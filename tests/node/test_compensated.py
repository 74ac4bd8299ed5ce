"""Real nodes with delay compensation against the simulation that `benchmarks.convergence` runs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import make_plan, run_cleanly
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.convergence.delayed import DelayedStage, train
from ravnest import Node, Trainer, model_fusion
from ravnest.stage.delays import DelayCompensation
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule
from ravnest.stage.updating import UpdateSettings

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(24, 6, generator=GENERATOR)
Y = torch.randint(0, 4, (24,), generator=GENERATOR)
NUM_STAGES = 3
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adam": (torch.optim.Adam, {"lr": 0.02}),
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
}


def build() -> torch.nn.Sequential:
    torch.manual_seed(1)
    widths = (6, 10, 10, 10, 4)
    blocks: list[torch.nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        blocks += [torch.nn.Linear(inner, outer), torch.nn.Tanh()]
    return torch.nn.Sequential(*blocks)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def simulate(
    firsts: list[int],
    schedule: Schedule,
    frequency: int,
    method: DelayCompensation,
    optimizer: str,
    slacks: tuple[int, ...] = (0,) * NUM_STAGES,
    size: int = 2,
) -> tuple[dict[str, torch.Tensor], list[float]]:
    model = build()
    bounds = [*firsts, len(model)]
    stages = [
        DelayedStage(
            model[bounds[k] : bounds[k + 1]],
            StagePosition(schedule, k, NUM_STAGES, frequency, slacks[k]),
            lambda delay: UpdateSettings(*OPTIMIZERS[optimizer], compensation=method, delay=delay),
        )
        for k in range(NUM_STAGES)
    ]
    share = size / 2

    def loss(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(predictions, targets) * share

    batches = zip(X.split(size), Y.split(size), strict=True)
    losses = [each / share for each in train(stages, batches, loss, update_frequency=frequency)]
    return model.state_dict(), losses


def train_and_say_first(node: Node) -> int:
    loader = DataLoader(TensorDataset(X, Y), batch_size=2)
    Trainer(node, train_loader=loader, save=True).train()
    return min(int(name.split(".")[0]) for name, _ in node.model.named_parameters())


@pytest.mark.parametrize(
    ("schedule", "frequency"),
    [("async", 1), ("async", 2), ("2bw", 3), ("1f1b", 2)],
)
@pytest.mark.parametrize("method", [DelayCompensation.AUTO, DelayCompensation.OFF])
@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_nodes_train_as_simulated(
    tmp_path: Path, schedule: str, frequency: int, method: DelayCompensation, optimizer: str
) -> None:
    run = make_plan(tmp_path, build(), (X[:2],), nodes=NUM_STAGES)
    factory, params = OPTIMIZERS[optimizer]
    run_cleanly(
        run,
        train_and_say_first,
        schedule=schedule,
        update_frequency=frequency,
        delay_compensation=str(method),
        optimizer=factory,
        optimizer_params=params,
        criterion=criterion,
    )
    firsts = [run.result_of(stage) for stage in range(NUM_STAGES)]
    slacks = tuple(map(run.slack, range(NUM_STAGES)))
    expected, losses = simulate(firsts, Schedule(schedule), frequency, method, optimizer, slacks)
    fused = model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
    for name, tensor in expected.items():
        assert torch.allclose(fused[name], tensor, atol=1e-6), name
    sums = [sum(losses[i : i + frequency]) for i in range(0, len(losses), frequency)]
    written = [float(line) for line in (tmp_path / "losses.txt").read_text().split()]
    assert written == pytest.approx(sums, abs=1e-5)


def test_compensation_changes_nothing_on_a_synchronous_schedule(tmp_path: Path) -> None:
    firsts, same = [0, 2, 4], ("adam", "sgd")
    for optimizer in same:
        on, _ = simulate(firsts, Schedule.ONE_F_ONE_B, 2, DelayCompensation.AUTO, optimizer)
        off, _ = simulate(firsts, Schedule.ONE_F_ONE_B, 2, DelayCompensation.OFF, optimizer)
        assert all(torch.equal(on[name], off[name]) for name in on)


@pytest.mark.parametrize(
    ("options", "schedule", "frequency"),
    [
        ({}, Schedule.TWO_BW, 1),
        ({"num_microbatches": 2}, Schedule.TWO_BW, 2),
        ({"loss_scale": 1.0}, Schedule.ONE_F_ONE_B, 1),
    ],
)
def test_whoever_says_no_schedule_gets_the_plans_and_whole_batches(
    tmp_path: Path, options: dict[str, Any], schedule: Schedule, frequency: int
) -> None:
    run = make_plan(tmp_path, build(), (X[:2],), nodes=NUM_STAGES, schedule=None)
    factory, params = OPTIMIZERS["adam"]
    trained = {"optimizer": factory, "optimizer_params": params, "criterion": criterion}
    run_cleanly(run, train_and_say_first, **trained, **options)
    firsts = [run.result_of(stage) for stage in range(NUM_STAGES)]
    slacks = tuple(map(run.slack, range(NUM_STAGES)))
    # Halves of a batch of two count half each.
    expected, losses = simulate(
        firsts, schedule, frequency, DelayCompensation.AUTO, "adam", slacks, size=2 // frequency
    )
    fused = model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
    for name, tensor in expected.items():
        assert torch.allclose(fused[name], tensor, atol=1e-6), name
    means = [sum(losses[i : i + frequency]) / frequency for i in range(0, len(losses), frequency)]
    written = [float(line) for line in (tmp_path / "losses.txt").read_text().split()]
    assert written == pytest.approx(means, abs=1e-5)
