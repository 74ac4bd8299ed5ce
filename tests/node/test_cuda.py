"""Stages on a CUDA device, and on unlike devices in one cluster, train as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.errors import PeerFailedError, TrainingError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

VOCABULARY, WIDTH, LENGTH, BATCH, NUM_BATCHES = 13, 16, 6, 4, 6
IDS = torch.randint(
    0, VOCABULARY, (NUM_BATCHES * BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0)
)
X, Y = IDS[:, :-1].contiguous(), IDS[:, 1:].contiguous()
SCHEDULES = ("1f1b", "zb-h1", "2bw", "async")


class Gpt(torch.nn.Module):
    """Positions and a mask made in the forward pass, a tied head, BatchNorm, perhaps dropout."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.position = torch.nn.Embedding(LENGTH, WIDTH)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(LENGTH) for _ in range(4))
        self.drop = torch.nn.Dropout(drop)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        x = self.token(ids) + self.position(torch.arange(length, device=ids.device))
        mask = torch.ones(length, length, device=ids.device, dtype=torch.bool).tril()
        for block, norm in zip(self.blocks, self.norms, strict=True):
            scores = (x @ x.transpose(1, 2)).masked_fill(~mask, float("-inf"))
            x = norm(x + self.drop(torch.tanh(block(scores.softmax(-1) @ x))))
        return self.head(x)


def build(drop: float = 0.0) -> Gpt:
    torch.manual_seed(0)
    return Gpt(drop)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=BATCH)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return F.cross_entropy(predictions.flatten(0, 1), targets[1].flatten())


ADAM: dict[str, Any] = {
    "optimizer": torch.optim.Adam,
    "optimizer_params": {"lr": 0.01, "eps": 1e-4},
    "criterion": criterion,
}


def train(node: Node) -> float | None:
    loaders = {"train_loader": loader(), "val_loader": loader()}
    trainer = Trainer(node, **loaders, epochs=2, save=True, metric=agreement)
    trainer.train()
    return trainer.evaluate()["agreement"]


def agreement(predictions: torch.Tensor, targets: Any) -> float:
    return float((predictions.argmax(-1) == targets[1]).float().mean())


def reference(device: str, frequency: int = 2) -> tuple[dict[str, torch.Tensor], float]:
    """State and last agreement of plain training on that device."""
    model = build().to(device)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM["optimizer_params"])
    for _ in range(2):
        for number, batch in enumerate(loader(), 1):
            moved = [each.to(device) for each in batch]
            criterion(model(moved[0]), moved).backward()
            if number % frequency == 0:
                optimizer.step()
                optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        agreed = agreement(model(X.to(device)), [X, Y.to(device)])
    return model.state_dict(), agreed


def fused(run: Run, cluster: int = 0) -> dict[str, torch.Tensor]:
    folders = {"node_data": run.folder / "node_data", "trained": run.folder / "trained"}
    return model_fusion(cluster, **folders)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor.cpu(), atol=2e-6, rtol=0, msg=name)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("labels", [True, False])
def test_a_cluster_on_one_device_equals_one_process(
    schedule: str, labels: bool, tmp_path: Path
) -> None:
    run = make_plan(tmp_path / "run", build(), (X[:BATCH],))
    own = {"labels": loader(), "test_labels": loader()} if labels else {}
    run_cleanly(run, train, device="cuda:0", schedule=schedule, update_frequency=2, **own, **ADAM)
    expected, agreed = reference("cuda:0")
    assert_same(fused(run), expected)
    assert run.result_of(0) == pytest.approx(agreed)


@pytest.mark.parametrize("on_cuda", [(0,), (1,), (2,), (0, 2)])
def test_stages_on_unlike_devices_equal_one_process(
    on_cuda: tuple[int, ...], tmp_path: Path
) -> None:
    run = make_plan(tmp_path / "run", build(), (X[:BATCH],))
    nodes = [run.plan.clusters[0][stage] for stage in on_cuda]
    each = {node: {"device": "cuda:0"} for node in nodes}
    run_cleanly(run, train, each=each, update_frequency=2, clip_grad_norm=1e6, **ADAM)
    assert_same(fused(run), reference("cpu")[0])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_second_run_gives_the_same_bytes(schedule: str, tmp_path: Path) -> None:
    states = []
    for name in ("first", "second"):
        run = make_plan(tmp_path / name, build(0.3), (X[:BATCH],))
        run_cleanly(run, train, device="cuda:0", schedule=schedule, **ADAM)
        states.append(fused(run))
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(
    "options",
    [
        {"recompute": True},
        {"autocast": "bf16"},
        {"autocast": "fp16", "loss_scale": "dynamic"},
        {"compression": "int8"},
        {"num_microbatches": 3},
        {"schedule": "2bw", "num_microbatches": 3},
    ],
    ids=str,
)
def test_options_train_on_a_device_and_beside_a_processor(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run = make_plan(tmp_path / "run", build(), (X[:BATCH],))
    each = {run.plan.clusters[0][1]: {"device": "cpu"}}
    run_cleanly(run, train, each=each, **{"device": "cuda:0", **options}, **ADAM)
    before = build().state_dict()
    assert all(value.isfinite().all() for value in fused(run).values())
    assert any(not torch.equal(value, before[name]) for name, value in fused(run).items())


@pytest.mark.parametrize(
    "options",
    [
        {"average_optim": True, "reduce_factor": 1},
        {"outer_optimizer": "nesterov", "averaging_compression": "int8", "reduce_factor": 2},
        {
            "outer_optimizer": "sgd",
            "averaging_overlap": 1,
            "averaging_fragments": 2,
            "reduce_factor": 2,
        },
    ],
    ids=["plain", "outer in 8 bits", "overlapping fragments"],
)
def test_clusters_on_unlike_devices_average_to_the_same_bytes(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run = make_plan(tmp_path / "run", build(), (X[:BATCH],), nodes=4, clusters=2)
    each = {node: {"device": "cuda:0"} for node in run.plan.clusters[1]}
    run_cleanly(run, train, each=each, **options, **ADAM)
    first, second = fused(run, 0), fused(run, 1)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_failure_on_the_leaf_ends_every_node_and_its_threads(tmp_path: Path) -> None:
    def failing(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
        raise ValueError("own fault")

    run = make_plan(tmp_path / "run", build(), (X[:BATCH],))
    run_nodes(run, train, device="cuda:0", **{**ADAM, "criterion": failing})
    errors = {stage: run.errors[node] for stage, node in enumerate(run.plan.clusters[0])}
    assert isinstance(errors[2], TrainingError)
    assert all(isinstance(errors[stage], PeerFailedError) for stage in (0, 1))
    assert all("own fault" in str(error) for error in errors.values())
