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
from ravnest.stage.schedule import Schedule, StagePosition
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
    batches = zip(X.split(2), Y.split(2), strict=True)
    losses = train(stages, batches, torch.nn.functional.cross_entropy, update_frequency=frequency)
    return model.state_dict(), losses


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

    def script(node: Node) -> int:
        loader = DataLoader(TensorDataset(X, Y), batch_size=2)
        Trainer(node, train_loader=loader, save=True).train()
        return min(int(name.split(".")[0]) for name, _ in node.model.named_parameters())

    factory, params = OPTIMIZERS[optimizer]
    run_cleanly(
        run,
        script,
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
