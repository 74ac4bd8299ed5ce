"""Models with parameters that are used in several places, and plain training of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from node_harness import Run
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.stage.actions import ActionKind, list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

VOCABULARY, WIDTH, LENGTH, BATCH = 11, 8, 5, 3
IDS = torch.randint(0, VOCABULARY, (30, LENGTH + 1), generator=torch.Generator().manual_seed(0))
X, Y = IDS[:, :-1].contiguous(), IDS[:, 1:].contiguous()


class TiedGpt(torch.nn.Module):
    """A language model whose head is its embedding.

    Args:
        detached: which of its uses, "owner" and "holder", give it no gradient.
    """

    def __init__(self, detached: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.detached = detached
        self.wte = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.lm_head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        first = self.wte.weight.detach() if "owner" in self.detached else self.wte.weight
        x = F.embedding(ids, first)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        last = self.wte.weight.detach() if "holder" in self.detached else self.wte.weight
        return F.linear(self.norm(x), last)


class Frozen(TiedGpt):
    """The embedding is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.wte.weight.requires_grad_(False)


class OnlyEval(TiedGpt):
    """Training has a head of its own; evaluation adds that of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        x = self.norm(x)
        return self.own(x) if self.training else self.own(x) + self.lm_head(x)


class Albert(torch.nn.Module):
    """One layer used first, last, and after every layer in between."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("eye", torch.eye(VOCABULARY))
        self.again = torch.nn.Linear(VOCABULARY, VOCABULARY)
        self.own = torch.nn.ModuleList(torch.nn.Linear(VOCABULARY, VOCABULARY) for _ in range(5))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.again(F.embedding(ids, self.eye))
        for layer in self.own:
            x = x + torch.tanh(self.again(torch.tanh(layer(x))))
        return self.again(x)


def build(kind: Callable[[], torch.nn.Module] = TiedGpt) -> torch.nn.Module:
    torch.manual_seed(0)
    return kind()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=BATCH)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return F.cross_entropy(predictions.flatten(0, 1), targets[1].flatten())


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02, eps=1e-4, weight_decay=0.1)


def decay(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)


SETTINGS: dict[str, Any] = {
    "delay_compensation": None,
    "optimizer": adam,
    "lr_scheduler": decay,
    "lr_step_on_epoch_change": False,
    "criterion": criterion,
}


def train(node: Node, **options: Any) -> dict[str, torch.Tensor]:
    """Trains; returns all that the stage's module holds, replicas included."""
    Trainer(node, train_loader=loader(), save=True, **options).train()
    return {**dict(node.model.named_parameters()), **dict(node.model.named_buffers())}


def fused(run: Run, cluster: int = 0) -> dict[str, torch.Tensor]:
    return model_fusion(cluster, node_data=run.folder / "node_data", trained=run.folder / "trained")


def assert_equal(run: Run, expected: torch.nn.Module) -> None:
    """Fused and loaded strictly, it is the expected model; and every replica has its values."""
    actual = fused(run)
    other = build(type(expected))
    other.load_state_dict(actual, strict=True)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(actual[name], tensor, atol=1e-6, rtol=0, msg=name)
    for stage in run.plan.stages:
        held = run.results[stage.node_id]
        for name in (*stage.parameters, *(replica.name for replica in stage.replicas)):
            assert torch.equal(held[name], fused(run, stage.cluster_id)[name]), name


def reference(frequency: int, epochs: int, kind: Callable[[], Any] = TiedGpt) -> Any:
    """Plain training; an incomplete group at an epoch's end gets a step of its own."""
    model = build(kind)
    optimizer = adam(p for p in model.parameters() if p.requires_grad)
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


def async_reference(run: Run, frequency: int, kind: Callable[[], Any]) -> torch.nn.Module:
    """One process in which every owner's parameters have the age its schedule gives them."""
    stages = run.plan.stages
    batches = list(loader())
    model = build(kind)
    initial = {name: each.detach() for name, each in model.named_parameters()}
    live = [
        {name: torch.nn.Parameter(initial[name].clone()) for name in stage.parameters}
        for stage in stages
    ]
    optimizers = [adam(parameters.values()) for parameters in live]
    schedulers = [decay(optimizer) for optimizer in optimizers]
    history = [[{n: p.detach().clone() for n, p in each.items()}] for each in live]
    positions = [
        StagePosition(Schedule.ASYNC, stage.index, len(stages), frequency, run.slack(stage.index))
        for stage in stages
    ]
    seen = [_versions_seen(position, len(batches)) for position in positions]
    for number, batch in enumerate(batches):
        for versions, known in zip(seen, history, strict=True):
            for name, value in known[versions[number]].items():
                model.get_parameter(name).data.copy_(value)
        model.zero_grad()
        criterion(model(batch[0]), batch).backward()
        is_last = (number + 1) % frequency == 0 or number == len(batches) - 1
        for each, known, optimizer, scheduler in zip(
            live, history, optimizers, schedulers, strict=True
        ):
            for name, parameter in each.items():
                gradient = model.get_parameter(name).grad
                assert gradient is not None
                total = gradient.clone() if parameter.grad is None else parameter.grad + gradient
                parameter.grad = total
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                known.append({n: p.detach().clone() for n, p in each.items()})
    for each in live:
        for name, parameter in each.items():
            model.get_parameter(name).data.copy_(parameter.data)
    return model


def _versions_seen(position: StagePosition, total: int) -> list[int]:
    steps, versions = 0, []
    for action in list_actions(position, total):
        if action.kind is ActionKind.FORWARD:
            versions.append(steps)
        steps += action.kind is ActionKind.STEP
    return versions
