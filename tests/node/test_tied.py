"""Parameters that several stages use, over the in-memory transport, against plain PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion

VOCABULARY, WIDTH, LENGTH, BATCH = 11, 8, 5, 3
IDS = torch.randint(0, VOCABULARY, (27, LENGTH + 1), generator=torch.Generator().manual_seed(0))
X, Y = IDS[:, :-1].contiguous(), IDS[:, 1:].contiguous()


class TiedGpt(torch.nn.Module):
    """A language model whose head is its embedding, and whose blocks share one projection."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.lm_head(self.norm(x))


def build() -> TiedGpt:
    torch.manual_seed(0)
    return TiedGpt()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=BATCH)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return F.cross_entropy(predictions.flatten(0, 1), targets[1].flatten())


def adam(parameters: Any, lr: float = 0.02) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.1)


def decay(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)


def train(node: Node, **options: Any) -> None:
    Trainer(node, train_loader=loader(), save=True, **options).train()


def fused(run: Run, cluster: int = 0) -> dict[str, torch.Tensor]:
    return model_fusion(cluster, node_data=run.folder / "node_data", trained=run.folder / "trained")


def assert_equal(actual: dict[str, torch.Tensor], expected: torch.nn.Module) -> None:
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(actual[name], tensor, atol=1e-6, rtol=0, msg=name)


def reference(frequency: int, epochs: int) -> TiedGpt:
    model = build()
    optimizer = adam(model.parameters())
    scheduler = decay(optimizer)
    for _ in range(epochs):
        batches = list(loader())
        for number, batch in enumerate(batches, 1):
            criterion(model(batch[0]), batch).backward()
            if number % frequency == 0 or number == len(batches):
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
    return model


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("frequency", [1, 4])
def test_1f1b_equals_plain_training(nodes: int, frequency: int, tmp_path: Path) -> None:
    """9 batches per epoch: with 4 of them a step, the last group of an epoch is incomplete."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=nodes)
    holders = [stage for stage in run.plan.stages if stage.replicas]
    assert len(holders) == (nodes > 1)
    run_cleanly(
        run,
        lambda node: train(node, epochs=2),
        update_frequency=frequency,
        optimizer=adam,
        lr_scheduler=decay,
        lr_step_on_epoch_change=False,
        criterion=criterion,
    )
    assert_equal(fused(run), reference(frequency, epochs=2))
