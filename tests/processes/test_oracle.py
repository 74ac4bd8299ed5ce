"""One process is the oracle: 1f1b over real provider processes equals plain PyTorch."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import oracle_data as task
import pytest
import torch
from oracle_model import Residual

from ravnest import clusterize, model_fusion, set_seed

SCRIPT = str(Path(__file__).parent / "scripts" / "oracle_provider.py")
EXAMPLE = torch.zeros(task.MICROBATCH, 3, 8, 8)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def build(dropout: float = 0.0) -> Residual:
    set_seed(3)
    return Residual(dropout)


def train_in_one_process(model: torch.nn.Module) -> list[float]:
    """Losses per step; the model is trained in place."""
    optimizer = task.OPTIMIZER(model.parameters(), **task.OPTIMIZER_PARAMS)
    losses: list[float] = []
    step_loss = 0.0
    for number, batch in enumerate(task.loader(), 1):
        loss = task.criterion(model(batch[0]), batch)
        loss.backward()
        step_loss += float(loss.detach())
        if number % task.FREQUENCY == 0:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step_loss)
            step_loss = 0.0
    return losses


def train_over(
    processes: object, folder: Path, configs: Callable[..., Path], stages: int, *, dropout: float
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Fused state dict and losses of a run over `stages` processes."""
    folder.mkdir()
    node_data = configs(folder, stages)
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(build(dropout), (EXAMPLE,), node_data=node_data, num_clusters=1)
    assert len(plan.clusters[0]) == stages
    for node_id in plan.clusters[0]:
        processes.start([SCRIPT, f"node_{node_id}", "1f1b"], cwd=folder)  # type: ignore[attr-defined]
    processes.wait_all()  # type: ignore[attr-defined]
    fused = model_fusion(node_data=node_data, trained=folder / "trained")
    losses = [float(line) for line in (folder / "losses.txt").read_text().split()]
    return fused, losses


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_1f1b_equals_one_process(
    stages: int, tmp_path: Path, processes: object, node_configs: Callable[..., Path]
) -> None:
    fused, losses = train_over(processes, tmp_path / "run", node_configs, stages, dropout=0.0)
    model = build()
    expected_losses = train_in_one_process(model)
    assert len(losses) == task.NUM_STEPS
    assert losses == pytest.approx(expected_losses, abs=1e-6)
    expected = model.state_dict()
    assert list(fused) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(fused[name], tensor, atol=1e-6, rtol=0, msg=name)
    model.load_state_dict(fused, strict=True)


def test_two_runs_with_dropout_give_identical_bytes_and_the_cut_does_not_matter(
    tmp_path: Path, processes: object, node_configs: Callable[..., Path]
) -> None:
    runs = [
        train_over(processes, tmp_path / name, node_configs, stages, dropout=0.3)
        for name, stages in (("first", 3), ("second", 3), ("two", 2), ("one", 1))
    ]
    (first, losses), (second, again), *others = runs
    assert losses == again
    assert all(torch.equal(first[name], second[name]) for name in first)
    for fused, other_losses in others:
        assert other_losses == pytest.approx(losses, abs=1e-6)
        for name in first:
            torch.testing.assert_close(fused[name], first[name], atol=1e-6, rtol=0, msg=name)
    undisturbed, _ = train_over(processes, tmp_path / "none", node_configs, 1, dropout=0.0)
    assert not torch.allclose(undisturbed["head.weight"], first["head.weight"], atol=1e-3)
