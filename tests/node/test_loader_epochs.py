"""Loaders that are told the epoch, and loaders whose position is saved."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from node_harness import Run, make_plan, run_cleanly
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from ravnest import Node, Trainer
from ravnest.checkpoint.loader_state import (
    load_loader_state,
    loader_state_path,
    save_loader_state,
)
from ravnest.errors import ConfigError, PlanFileError

X = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(1))


def build() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def shuffling() -> DataLoader[Any]:
    """Another order in every epoch, by its number alone."""
    data = TensorDataset(X, Y)
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=1, rank=0, seed=5)
    return DataLoader(data, batch_size=4, sampler=sampler)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


SGD: dict[str, Any] = {
    "optimizer": torch.optim.SGD,
    "optimizer_params": {"lr": 0.5},
    "criterion": criterion,
}


def losses(epochs: tuple[int, ...]) -> list[float]:
    """Of plain training."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    loader = shuffling()
    for epoch in epochs:
        assert isinstance(loader.sampler, DistributedSampler)
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            loss = criterion(model(batch[0]), batch)
            loss.backward()
            found.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
    return found


def written(run: Run) -> list[float]:
    return [float(line) for line in (run.folder / "losses.txt").read_text().split()]


class Own(Trainer):
    """Chooses the epochs itself, in the two ways in which scripts do."""

    def train(self) -> None:
        assert self.train_loader is not None
        for epoch, owner in ((7, self.train_loader), (3, self.train_loader.sampler), (3, None)):
            if owner is not None:
                owner.set_epoch(epoch)
            for x, _ in self.train_loader:
                self.node.forward_compute(x)
            self.node.wait_for_backwards()


@pytest.mark.parametrize("own", [False, True])
def test_root_and_leaf_are_told_the_epoch(own: bool, tmp_path: Path) -> None:
    """The leaf's loader is checked batch by batch: another order would be an error."""
    run = make_plan(tmp_path, build(), (X[:4],), nodes=2)

    def script(node: Node) -> None:
        loader = shuffling()
        (
            Own(node, train_loader=loader) if own else Trainer(node, train_loader=loader, epochs=3)
        ).train()

    run_cleanly(run, script, labels=shuffling(), **SGD)
    assert written(run) == pytest.approx(losses((7, 3, 3) if own else (0, 1, 2)), abs=1e-6)


class Stateful:
    """Batches of a fixed order; goes on where its state says."""

    def __init__(self, extra: Any = None) -> None:
        self.position = 0
        self.extra = extra

    def __iter__(self) -> Iterator[Any]:
        while self.position < 5:
            rows = slice(4 * self.position, 4 * self.position + 4)
            self.position += 1
            yield X[rows], Y[rows]
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "extra": self.extra}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Saving(Trainer):
    def train(self) -> None:
        assert self.train_loader is not None
        for number, (x, _) in enumerate(self.train_loader, 1):
            self.node.forward_compute(x)
            if number == 3:
                self.node.trigger_save_submodel()
                break
        self.node.wait_for_backwards()


def test_the_root_saves_where_its_loader_stands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=2)
    root, leaf = run.plan.clusters[0]
    path = loader_state_path(tmp_path / "trained", 0, root)
    run_cleanly(run, lambda node: Saving(node, train_loader=Stateful()).train(), **SGD)
    state, epoch = load_loader_state(path)
    resumed = Stateful()
    resumed.load_state_dict(state)
    (x, _) = next(iter(resumed))
    assert torch.equal(x, X[12:16]), "the fourth batch is the next"
    assert epoch == 0
    assert not loader_state_path(tmp_path / "trained", 0, leaf).exists()

    def script(node: Node) -> None:
        Trainer(node, train_loader=Stateful(torch.Generator()), epochs=2, save=True).train()

    with caplog.at_level(logging.WARNING):
        run_cleanly(run, script, **SGD)
    assert "has a Generator, which is no plain data" in caplog.text
    assert load_loader_state(path) == (state, 0), "the older one stays"
    run_cleanly(
        run, lambda n: Trainer(n, train_loader=Stateful(), epochs=2, save=True).train(), **SGD
    )
    assert load_loader_state(path) == ({"position": 0, "extra": None}, 2)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
NESTED = st.recursive(
    PLAIN,
    lambda each: (
        st.lists(each)
        | st.lists(each).map(tuple)
        | st.dictionaries(st.text() | st.integers(), each)
    ),
    max_leaves=8,
)


@settings(max_examples=40)
@given(NESTED)
def test_states_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, state: Any
) -> None:
    path = tmp_path_factory.mktemp("state") / "state.safetensors"
    save_loader_state(path, state, epoch=4)
    found, epoch = load_loader_state(path)
    assert repr(found) == repr(state)  # NaN is not equal to itself
    assert epoch == 4


def test_tensors_and_arrays_come_back(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    state = {
        "generator": torch.get_rng_state(),
        "keys": np.arange(6).reshape(2, 3),
        "half": math.pi,
    }
    save_loader_state(path, state, epoch=0)
    found, _ = load_loader_state(path)
    assert torch.equal(found["generator"], state["generator"])
    assert np.array_equal(found["keys"], state["keys"])
    assert found["half"] == math.pi


def test_what_cannot_be_saved_or_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    for state in ({"a": object()}, {(1, 2): 3}):
        with pytest.raises(ConfigError, match="the loader's state has a"):
            save_loader_state(path, state, epoch=0)
    with pytest.raises(PlanFileError, match="no loader that can be resumed"):
        load_loader_state(path)
    path.write_bytes(b"nonsense")
    with pytest.raises(PlanFileError, match="is damaged"):
        load_loader_state(path)
    assert list(tmp_path.iterdir()) == [path]
