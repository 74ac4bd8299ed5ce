"""`Node(recompute=True)` trains to the same bits as keeping activations, whatever the schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import make_plan, run_cleanly
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.errors import ConfigError
from ravnest.node.allocator import is_tight
from ravnest.node.options import NodeOptions
from ravnest.stage.schedule import Schedule

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(1))


def build() -> torch.nn.Sequential:
    torch.manual_seed(0)
    parts: list[torch.nn.Module] = []
    for width in (6, 12, 12, 12):
        parts += [torch.nn.Linear(width, 12), torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.3)]
    return torch.nn.Sequential(*parts, torch.nn.Linear(12, 3))


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def trained(folder: Path, schedule: str, *, recompute: bool) -> dict[str, torch.Tensor]:
    run = make_plan(folder, build(), (X[:4],))

    def script(node: Node) -> bool:
        loader = DataLoader(TensorDataset(X, Y), batch_size=4)
        Trainer(node, train_loader=loader, save=True, epochs=2).train()
        return node._parts.engine._recompute

    run_cleanly(
        run, script, schedule=schedule, recompute=recompute, criterion=criterion, seed=3,
        optimizer=torch.optim.Adam, update_frequency=3,
    )  # fmt: skip
    # The leaf has one microbatch in flight, so that keeping it costs no memory.
    assert [run.result_of(stage) for stage in range(3)] == [recompute, recompute, False]
    return model_fusion(node_data=folder / "node_data", trained=folder / "trained")


@pytest.mark.parametrize("schedule", list(map(str, Schedule)))
def test_recomputing_changes_no_bit(tmp_path: Path, schedule: str) -> None:
    kept = trained(tmp_path / "kept", schedule, recompute=False)
    again = trained(tmp_path / "again", schedule, recompute=True)
    assert kept.keys() == again.keys()
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    assert kept["1.num_batches_tracked"] == 12


def test_freed_memory_is_returned_where_the_plan_is_tight(tmp_path: Path) -> None:
    plan = run_cleanly(make_plan(tmp_path, build(), (X[:4],)), lambda node: node.plan).result_of(0)
    assert 300e6 < plan.needed_bytes < plan.memory_bytes == 4e9
    assert not is_tight(plan)
    assert is_tight(replace(plan, memory_bytes=int(plan.needed_bytes * 1.3)))


def test_anything_but_a_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="recompute='yes' is not possible; expected True or"):
        NodeOptions.parse({"recompute": "yes"})
