"""Nodes that average with an outer optimizer, against workers in one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion

NUM_BATCHES, SAMPLES = 12, 4
X = torch.randn(NUM_BATCHES * SAMPLES, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (len(X),), generator=torch.Generator().manual_seed(1))
EPOCHS = 2


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(),
        nn.Linear(32, 3),
    )  # fmt: skip


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def train(node: Node) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=SAMPLES)
    Trainer(node, train_loader=loader, epochs=EPOCHS, save=True).train()


def run(tmp_path: Path, *, nodes: int, clusters: int, **options: Any) -> Run:
    plan = make_plan(tmp_path, build(), (X[:SAMPLES],), nodes=nodes, clusters=clusters)
    return run_cleanly(
        plan,
        train,
        criterion=criterion,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        **options,
    )


def fused(tmp_path: Path, clusters: int) -> list[dict[str, torch.Tensor]]:
    return [
        model_fusion(each, node_data=tmp_path / "node_data", trained=tmp_path / "trained")
        for each in range(clusters)
    ]


def simulate(num_workers: int, reduce_factor: int, outer: dict[str, Any]) -> torch.nn.Module:
    """K workers in one process: torch's SGD as the outer optimizer of their mean change."""
    shared = build()
    anchors = [torch.nn.Parameter(p.detach().clone()) for p in shared.parameters()]
    optimizer = torch.optim.SGD(anchors, **outer)
    workers = [copy.deepcopy(shared) for _ in range(num_workers)]
    optimizers = [torch.optim.SGD(worker.parameters(), lr=0.1) for worker in workers]

    def average() -> None:
        for position, anchor in enumerate(anchors):
            local = [list(worker.parameters())[position].detach() for worker in workers]
            anchor.grad = anchor.detach() - torch.stack(local).mean(0)
        optimizer.step()
        for worker in workers:
            for parameter, anchor in zip(worker.parameters(), anchors, strict=True):
                parameter.data.copy_(anchor.detach())
        for buffers in zip(*(worker.buffers() for worker in workers), strict=True):
            together = torch.stack(buffers)
            mean = together.mean(0) if together.is_floating_point() else together.amax(0)
            for buffer in buffers:
                buffer.copy_(mean)

    num_steps = 0
    for _ in range(EPOCHS):
        for first in range(0, NUM_BATCHES, num_workers):
            for number, worker in enumerate(workers):
                rows = slice((first + number) * SAMPLES, (first + number + 1) * SAMPLES)
                torch.nn.functional.cross_entropy(worker(X[rows]), Y[rows]).backward()
                optimizers[number].step()
                optimizers[number].zero_grad()
            num_steps += 1
            if num_steps % reduce_factor == 0:
                average()
    if num_steps % reduce_factor:  # what is left over is averaged at the end
        average()
    return workers[0]


@pytest.mark.parametrize(("nodes", "clusters"), [(2, 2), (3, 3), (4, 2)])
@pytest.mark.parametrize("reduce_factor", [2, 5])
def test_clusters_train_as_workers_in_one_process(
    nodes: int, clusters: int, reduce_factor: int, tmp_path: Path
) -> None:
    run(
        tmp_path,
        nodes=nodes,
        clusters=clusters,
        reduce_factor=reduce_factor,
        outer_optimizer="nesterov",
    )
    expected = simulate(clusters, reduce_factor, {"lr": 0.7, "momentum": 0.9, "nesterov": True})
    states = fused(tmp_path, clusters)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(states[0][name], tensor, rtol=1e-5, atol=2e-6)
        assert all(torch.equal(state[name], states[0][name]) for state in states)


def test_parameters_travel_compressed_and_buffers_as_they_are(tmp_path: Path) -> None:
    compressed = run(tmp_path, nodes=2, clusters=2, reduce_factor=3, averaging_compression="int8")
    expected = simulate(2, 3, {"lr": 1.0})  # no outer optimizer was named: the plain mean
    left, right = fused(tmp_path, 2)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(left[name], right[name])
        torch.testing.assert_close(left[name], tensor, rtol=0, atol=0.02)
    rounds = compressed.events(0, "averaging_round")
    # Of 1443 trained numbers a node sends as many, once, and 66 of BatchNorm at full width.
    assert max(each["sent_bytes"] for each in rounds) < 1443 * (1 + 4 / 256) + 66 * 8 + 1500


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outer_optimizer": "adam"}, "'sgd', 'nesterov'"),
        ({"outer_optimizer_params": {"lr": 1}}, "without outer_optimizer"),
        ({"averaging_compression": "int2"}, "averaging_compression='int2' is unknown"),
    ],
)
def test_impossible_options_are_refused_at_once(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    plan = run_nodes(make_plan(tmp_path, build(), (X[:SAMPLES],), nodes=1), train, **options)
    assert words in str(plan.errors[0])
