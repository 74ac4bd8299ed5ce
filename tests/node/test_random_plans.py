"""Any plan under any schedule trains to its end, and holds no more than it may, however long."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from delaying_network import DelayingNetwork
from hypothesis import given, settings
from hypothesis import strategies as st
from node_harness import Run, make_plan, run_cleanly
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer
from ravnest.stage.schedule import Schedule

NUM_STEPS = int(os.environ.get("RAVNEST_STEPS", "96"))
X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
FOLDER = tempfile.TemporaryDirectory(prefix="ravnest-plans-")


class Net(torch.nn.Module):
    """Small, with dropout and a weight on the first and on the last stage."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(4))
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + self.drop(torch.tanh(layer(x)))
        return F.linear(x, self.first.weight)


@cache
def planned(stages: int, clusters: int) -> Run:
    """A plan; the same one serves all runs."""
    torch.manual_seed(0)
    folder = Path(FOLDER.name) / f"{stages}-{clusters}"
    return make_plan(folder, Net(), (X[:4],), nodes=stages * clusters, clusters=clusters)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return (predictions - targets[1]).square().mean()


def held_to_its_bounds(node: Node) -> None:
    """Checks, at every step of a node, what it holds."""
    pipeline, engine = node._parts.pipeline, node._parts.engine
    position, step, forward = pipeline._position, engine.step, engine.forward

    def stepping(*, is_left_out: bool) -> None:
        step(is_left_out=is_left_out)
        assert engine.weights.num_stashed <= replace(position, slack=0).max_staleness

    def computing(*arguments: Any) -> Any:
        results = forward(*arguments)
        assert engine.num_in_flight <= position.max_in_flight
        return results

    engine.step = stepping  # type: ignore[method-assign]
    engine.forward = computing  # type: ignore[method-assign]


def loader(num_batches: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X[: 4 * num_batches], X[: 4 * num_batches]), batch_size=4)


SGD: dict[str, Any] = {
    "optimizer": torch.optim.SGD,
    "optimizer_params": {"lr": 0.01},
    "criterion": criterion,
}


# In short: planning and running takes a while. `make endurance` has its own profile of 1,000.
@settings(max_examples=max(settings().max_examples // 5, 20), deadline=None)
@given(
    schedule=st.sampled_from(Schedule),
    stages=st.integers(1, 5),
    clusters=st.integers(1, 2),
    frequency=st.integers(1, 6),
    parts=st.none() | st.integers(1, 6),
    num_batches=st.integers(1, 12),
    reduce_factor=st.none() | st.integers(1, 3),
    recompute=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_no_plan_locks_up(
    schedule: Schedule,
    stages: int,
    clusters: int,
    frequency: int,
    parts: int | None,
    num_batches: int,
    reduce_factor: int | None,
    recompute: bool,
    seed: int,
) -> None:
    """A run that hangs fails by its timeout, with what every node waits for."""
    if schedule.delays(stages) and parts is not None:
        parts = max(parts, -(-stages // frequency))
    plan = planned(stages, clusters)

    def script(node: Node) -> int:
        held_to_its_bounds(node)
        Trainer(node, train_loader=loader(num_batches), epochs=2).train()
        assert node._parts.engine.num_in_flight == 0
        assert node._parts.engine.weights.num_stashed == 0
        return node._parts.engine.weights.number

    with contextlib.redirect_stderr(io.StringIO()):
        run = run_cleanly(
            Run(plan.folder, plan.plan), script, network=DelayingNetwork(seed),
            schedule=str(schedule), update_frequency=frequency, num_microbatches=parts,
            reduce_factor=reduce_factor, recompute=recompute, **SGD,
        )  # fmt: skip
    for cluster in run.plan.clusters:
        assert len({run.results[node] for node in cluster}) == 1, "all stages make as many steps"


def _num_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("schedule", list(Schedule))
def test_nothing_builds_up(schedule: Schedule) -> None:
    """Tensors alive in the whole process, after each epoch of sixteen steps."""
    counts: list[int] = []

    class Counting(Trainer):
        def train(self) -> None:
            self.prelim_checks()
            for _ in range(NUM_STEPS // 16):
                for batch in self.train_loader:
                    self.node.forward_compute(batch[0])
                self.node.wait_for_backwards()
                # An answer has come from the leaf: every stage is through with the epoch.
                self.node.no_grad_forward_compute(X[:4])
                counts.append(_num_tensors())

    def script(node: Node) -> None:
        held_to_its_bounds(node)
        Counting(node, train_loader=loader(16)).train()

    plan = planned(3, 1)
    with contextlib.redirect_stderr(io.StringIO()):
        run_cleanly(
            Run(plan.folder, plan.plan), script, timeout_s=1000, schedule=str(schedule),
            num_microbatches=4, **SGD,
        )  # fmt: skip
    half = len(counts) // 2
    assert max(counts[half:]) <= max(counts[1:half])
