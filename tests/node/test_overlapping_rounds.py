"""Rounds that training goes on beside, and rounds over a fragment, against one process."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.averaging.fragments import Part

NUM_BATCHES, SAMPLES = 26, 4
X = torch.randn(NUM_BATCHES * SAMPLES, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (len(X),), generator=torch.Generator().manual_seed(1))
NESTEROV = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(),
        nn.Linear(16, 3),
    )  # fmt: skip


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def train(node: Node) -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=SAMPLES)
    Trainer(node, train_loader=loader, save=True).train()


def run(tmp_path: Path, *, nodes: int = 2, clusters: int = 2, **options: Any) -> Run:
    plan = make_plan(tmp_path, build(), (X[:SAMPLES],), nodes=nodes, clusters=clusters)
    return run_cleanly(
        plan,
        train,
        criterion=criterion,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        **options,
    )


def fused(tmp_path: Path, clusters: int = 2) -> list[dict[str, torch.Tensor]]:
    return [
        model_fusion(each, node_data=tmp_path / "node_data", trained=tmp_path / "trained")
        for each in range(clusters)
    ]


@dataclass
class Workers:
    """K workers in one process, and the torch optimizer that moves their common anchors."""

    models: list[torch.nn.Module]
    anchors: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    fragments: list[tuple[str, ...]]

    @classmethod
    def of(cls, num_workers: int, num_fragments: int, outer: dict[str, Any]) -> Workers:
        model = build()
        anchors = {
            name: torch.nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()
        }
        sizes = {name: tensor.numel() for name, tensor in model.state_dict().items()}
        buffers = [name for name, _ in model.named_buffers()]
        parts = [Part(index, num_fragments) for index in range(num_fragments)]
        return cls(
            [copy.deepcopy(model) for _ in range(num_workers)],
            anchors,
            torch.optim.SGD(anchors.values(), **outer),
            [(*p.of(list(anchors), sizes), *p.of(buffers, sizes)) for p in parts],
        )

    def take(self, fragment: int) -> list[dict[str, torch.Tensor]]:
        names = self.fragments[fragment]
        states = [worker.state_dict() for worker in self.models]
        return [{name: state[name].clone() for name in names} for state in states]

    def land(self, sent: list[dict[str, torch.Tensor]]) -> None:
        results: dict[str, torch.Tensor] = {}
        for name in sent[0]:
            together = torch.stack([each[name] for each in sent])
            if name in self.anchors:
                self.anchors[name].grad = self.anchors[name].detach() - together.mean(0)
            elif together.is_floating_point():
                results[name] = together.mean(0)
            else:
                results[name] = together.amax(0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        results |= {name: a.detach() for name, a in self.anchors.items() if name in sent[0]}
        for worker, own in zip(self.models, sent, strict=True):
            for name, live in worker.state_dict().items():
                if name in results:
                    live.copy_(results[name] + (live - own[name]))


def simulate(
    reduce_factor: int, overlap: int, num_fragments: int, outer: dict[str, Any]
) -> Mapping[str, torch.Tensor]:
    workers = Workers.of(2, num_fragments, outer)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in workers.models]
    flight: tuple[int, list[dict[str, torch.Tensor]]] | None = None
    num_rounds = 0
    for step in range(1, NUM_BATCHES // 2 + 1):
        for number, worker in enumerate(workers.models):
            first = (2 * (step - 1) + number) * SAMPLES
            rows = slice(first, first + SAMPLES)
            torch.nn.functional.cross_entropy(worker(X[rows]), Y[rows]).backward()
            optimizers[number].step()
            optimizers[number].zero_grad()
        if flight is not None and step >= flight[0]:
            workers.land(flight[1])
            flight = None
        if step * num_fragments >= (num_rounds + 1) * reduce_factor:
            sent = workers.take(num_rounds % num_fragments)
            num_rounds += 1
            if overlap:
                flight = (step + overlap, sent)
            else:
                workers.land(sent)
    if flight is not None:
        workers.land(flight[1])
    for _ in range(num_fragments):
        workers.land(workers.take(num_rounds % num_fragments))
        num_rounds += 1
    return workers.models[0].state_dict()


CASES = [  # reduce_factor, overlap, fragments
    (4, 1, 1),
    (4, 3, 1),
    (4, 4, 1),
    (6, 0, 2),
    (4, 1, 3),
    (6, 2, 3),
]


@pytest.mark.parametrize("outer", [None, "nesterov"])
@pytest.mark.parametrize(("reduce_factor", "overlap", "fragments"), CASES)
def test_nodes_train_as_workers_in_one_process(
    reduce_factor: int, overlap: int, fragments: int, outer: str | None, tmp_path: Path
) -> None:
    found = run(
        tmp_path,
        reduce_factor=reduce_factor,
        outer_optimizer=outer,
        averaging_overlap=overlap,
        averaging_fragments=fragments,
    )
    chosen = NESTEROV if outer else {"lr": 1.0}
    # 13 steps: all fragments have news when training ends, so that all of them move once more.
    expected = simulate(reduce_factor, overlap, fragments, chosen)
    left, right = fused(tmp_path)
    for name, tensor in expected.items():
        assert torch.equal(left[name], right[name])
        torch.testing.assert_close(left[name], tensor, rtol=2e-5, atol=3e-6)
    rounds = found.events(0, "averaging_round")
    assert len(rounds) == 13 * fragments // reduce_factor + fragments
    assert sum(each["num_samples"] for each in rounds) == fragments * 13 * SAMPLES


@pytest.mark.parametrize("options", [{}, {"outer_optimizer": "nesterov"}])
def test_runs_repeat_bit_by_bit_and_all_clusters_end_alike(
    options: dict[str, Any], tmp_path: Path
) -> None:
    states = []
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        run(
            folder,
            nodes=5,  # clusters of two and three stages, or so
            reduce_factor=6,
            averaging_overlap=2,
            averaging_fragments=2,
            averaging_compression="int8",
            average_optim=True,
            schedule="async",
            **options,
        )
        states += fused(folder)
    for name, tensor in states[0].items():
        assert all(torch.equal(state[name], tensor) for state in states)


def test_a_node_that_fails_beside_a_round_ends_all_with_its_reason(tmp_path: Path) -> None:
    calls: list[int] = []

    def failing(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 10:
            raise ValueError("the criterion broke")
        return criterion(predictions, targets)

    plan = make_plan(tmp_path, build(), (X[:SAMPLES],), nodes=2, clusters=2)
    run_nodes(
        plan,
        train,
        criterion=failing,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        reduce_factor=4,
        averaging_overlap=4,
    )
    assert set(plan.errors) == {0, 1}
    assert any("the criterion broke" in str(error) for error in plan.errors.values())


def test_rounds_say_how_long_training_stood_still(tmp_path: Path) -> None:
    run(tmp_path, reduce_factor=4, averaging_overlap=3)
    lines = (tmp_path / "events" / "node_0.jsonl").read_text().splitlines()
    rounds = [e for e in map(json.loads, lines) if e["event"] == "averaging_round"]
    assert all(each["waited_s"] >= 0 and each["duration_s"] > 0 for each in rounds)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"averaging_overlap": -1}, "expected a whole number from 0 on"),
        ({"averaging_overlap": True}, "averaging_overlap=True"),
        ({"averaging_fragments": 0}, "expected a whole number from 1 on"),
        ({"averaging_overlap": 2}, "reduce_factor is not set"),
        ({"averaging_overlap": 5, "reduce_factor": 4}, "set averaging_overlap to 4 or less"),
        ({"averaging_fragments": 5, "reduce_factor": 4}, "set averaging_fragments to 4 or less"),
    ],
)
def test_impossible_options_are_refused_with_the_fix(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    plan = run_nodes(make_plan(tmp_path, build(), (X[:SAMPLES],), nodes=1), train, **options)
    error = plan.errors[0]
    assert words in f"{error} {getattr(error, 'hint', '')}"
