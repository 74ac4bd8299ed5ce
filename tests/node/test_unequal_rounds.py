"""Clusters of unequal measured speed: batches by speed, and rounds that nobody waits for."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest
import torch
from node_harness import Run, run_cleanly
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, clusterize, model_fusion

SAMPLES = 4
NUM_BATCHES = 30


def make_plan(folder: Path, flops: tuple[float, ...]) -> Run:
    """One node per cluster, each of its own speed."""
    node_data = folder / "node_data"
    node_data.mkdir()
    nodes = {
        str(i): {
            "IP": f"127.0.0.1:{9000 + i}",
            "benchmarks": {"ram": 4, "bandwidth": 1000, "latency": 1, "flops": speed},
        }
        for i, speed in enumerate(flops)
    }
    (node_data / "node_configs.json").write_text(json.dumps(nodes))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.Tanh(), torch.nn.Linear(256, 3))
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(
            model, (torch.zeros(SAMPLES, 8),), node_data=node_data, num_clusters=len(flops)
        )
    return Run(folder, plan)


def train(node: Node) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES * NUM_BATCHES, 8, generator=generator)
    y = torch.randint(0, 3, (len(x),), generator=generator)
    loader = DataLoader(TensorDataset(x, y), batch_size=SAMPLES)
    Trainer(node, train_loader=loader, save=True).train()
    return node.plan.dealing


@pytest.mark.parametrize("reduce_factor", [None, 2, 3])
def test_a_cluster_twice_as_fast_trains_twice_as_much_between_rounds(
    reduce_factor: int | None, tmp_path: Path
) -> None:
    run = make_plan(tmp_path, (1e-3, 5e-4))  # so slow that computing is all that counts
    run_cleanly(
        run,
        train,
        criterion=lambda p, t: torch.nn.functional.cross_entropy(p, t[1]),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        reduce_factor=reduce_factor,
    )
    assert run.results[0] == run.results[1] == (0, 1, 0)
    rounds = [run.events(node, "averaging_round") for node in (0, 1)]
    weights = [[each["num_samples"] for each in own] for own in rounds]
    assert [sum(own) for own in weights] == [SAMPLES * 20, SAMPLES * 10]
    if reduce_factor == 3:  # 3 steps on average are 4 of the fast one and 2 of the slow one
        assert weights[0][:5] == [SAMPLES * 4] * 5
        assert weights[1][:5] == [SAMPLES * 2] * 5
    for fast, slow in zip(*weights, strict=True):
        assert abs(fast - 2 * slow) <= 2 * SAMPLES
    fused = [
        model_fusion(cluster, node_data=tmp_path / "node_data", trained=tmp_path / "trained")
        for cluster in (0, 1)
    ]
    for name, tensor in fused[0].items():
        assert torch.equal(tensor, fused[1][name])
