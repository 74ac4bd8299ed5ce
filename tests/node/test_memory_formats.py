"""Values and gradients lie in memory as in one process, so kernels sum in the same order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import make_plan, run_cleanly
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion

X = torch.randn(12, 3, 16, 16, generator=torch.Generator().manual_seed(0))
Y = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
SGD: dict[str, Any] = {"optimizer": torch.optim.SGD, "optimizer_params": {"lr": 0.1}}


class Block(nn.Module):
    """Half in one order of dimensions, half in the other; a scale whose gradient is a long sum."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(96, 96, 7, padding=3, groups=96)
        self.norm = nn.LayerNorm(96)
        self.expand, self.shrink = nn.Linear(96, 192), nn.Linear(192, 96)
        self.scale = nn.Parameter(torch.full((96, 1, 1), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.convolution(x).permute(0, 2, 3, 1))
        y = self.shrink(nn.functional.gelu(self.expand(y)))
        return self.scale * y.permute(0, 3, 1, 2) + x


def build() -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [nn.Conv2d(3, 96, 4, 4), *(Block() for _ in range(4)), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(96, 5))


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=4)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return nn.functional.mse_loss(predictions, targets[1])


def train(node: Node) -> None:
    Trainer(node, train_loader=loader(), save=True, epochs=3).train()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("nodes", [3, 5])
def test_training_has_the_bits_of_one_process(nodes: int, schedule: str, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)
    run_cleanly(run, train, schedule=schedule, clip_grad_norm=0.05, criterion=criterion, **SGD)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for batch in loader():
            criterion(model(batch[0]), batch).backward()
            assert torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05) > 0.05
            optimizer.step()
            optimizer.zero_grad()
    fused = model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
    for name, expected in model.state_dict().items():
        assert torch.equal(fused[name], expected), name
