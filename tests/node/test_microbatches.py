"""Batches that the root splits: the gradient, the loss and the targets are those of the whole."""

from __future__ import annotations

import itertools
from collections import UserDict, namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Trainer, model_fusion
from ravnest.errors import ConfigError, DataOrderError
from ravnest.node.microbatches import Rows, deal_rows, take_rows
from ravnest.node.settings import RunSettings
from ravnest.stage.schedule import Schedule

X = torch.randn(33, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (33,), generator=torch.Generator().manual_seed(1))
PARTS = 4


class Net(torch.nn.Module):
    """No BatchNorm, whose statistics are those of a microbatch by design; a mask for all."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) @ mask
        return x


MASK = torch.eye(6).roll(1, 0)


def build() -> Net:
    torch.manual_seed(0)
    return Net()


def loader(x: torch.Tensor = X) -> DataLoader[Any]:
    """Batches of 10, 10, 10 and 3: none divides by 4, the last has fewer samples than that."""
    return DataLoader(TensorDataset(x, Y), batch_size=10)


def mean(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


class Sum(torch.nn.CrossEntropyLoss):
    """Says that it sums."""

    def __init__(self) -> None:
        super().__init__(reduction="sum")

    def forward(self, predictions: torch.Tensor, targets: Any) -> torch.Tensor:
        return super().forward(predictions, targets[1])


def reference(criterion: Any, *, lr: float, frequency: int = 1, epochs: int = 2) -> tuple[Net, Any]:
    """Plain training on whole batches; the model and the loss of every step."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses: list[float] = []
    for _ in range(epochs):
        batches = list(loader())
        total = 0.0
        for number, batch in enumerate(batches, 1):
            loss = criterion(model(batch[0], MASK), batch)
            loss.backward()
            total += loss.item()
            if number % frequency == 0 or number == len(batches):
                optimizer.step()
                optimizer.zero_grad()
                losses.append(total)
                total = 0.0
    return model, losses


class Masked(Trainer):
    """Gives the mask along with every batch."""

    def train(self) -> None:
        self.prelim_checks()
        for _ in range(self.epochs):
            for batch in self.train_loader:
                self.node.forward_compute(batch[0], mask=MASK)
            self.node.wait_for_backwards()


def run_split(folder: Path, criterion: Any, *, nodes: int = 3, lr: float, **arguments: Any) -> Run:
    run = make_plan(folder, build(), (X[:10],), {"mask": MASK}, nodes=nodes)
    return run_cleanly(
        run,
        lambda n: (Masked(n, train_loader=loader(), epochs=2, save=True).train(), n)[1],
        criterion=criterion,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": lr, "momentum": 0.9},
        num_microbatches=PARTS,
        **arguments,
    )


class Unnamed(Trainer):
    """Has no train_loader: batches get their numbers from the order in which they come."""

    def train(self) -> None:
        for _ in range(2):
            for start in range(0, 30, 10):
                self.node.forward_compute(X[start : start + 10], mask=MASK)
            self.node.wait_for_backwards()


def test_targets_in_a_tensor_keep_their_places_without_a_loader(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:10],), {"mask": MASK}, nodes=2)
    arguments = {"criterion": mean, "labels": Y, "optimizer": torch.optim.SGD}
    losses = []
    for number in (1, PARTS):
        run_cleanly(run, lambda n: Unnamed(n).train(), num_microbatches=number, **arguments)
        losses.append([float(line) for line in (tmp_path / "losses.txt").read_text().split()])
    assert len(losses[0]) == 6
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def assert_like(run: Run, expected: tuple[Net, list[float]]) -> None:
    model, losses = expected
    fused = model_fusion(node_data=run.folder / "node_data", trained=run.folder / "trained")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(fused[name], tensor, atol=1e-6, rtol=0, msg=name)
    written = [float(line) for line in (run.folder / "losses.txt").read_text().split()]
    assert written == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("frequency", [1, 3])
def test_the_gradient_is_that_of_the_whole_batch(
    nodes: int, frequency: int, tmp_path: Path
) -> None:
    run = run_split(tmp_path, mean, nodes=nodes, lr=0.1, update_frequency=frequency)
    assert_like(run, reference(mean, lr=0.1, frequency=frequency))
    for node in run.results.values():
        assert (node.n_forwards, node.n_backwards) == (8, 8)  # batches, not microbatches


def test_stages_really_work_on_microbatches(tmp_path: Path) -> None:
    run = run_split(tmp_path, mean, lr=0.1)
    (first, second) = run.events(run.plan.clusters[0][2], "epoch_ended")
    assert first["num_microbatches"] == second["num_microbatches"] == 4 * PARTS


@pytest.mark.parametrize("criterion", [Sum(), lambda p, t: mean(p, t) * len(p)])
def test_a_sum_is_not_weighted(criterion: Any, tmp_path: Path) -> None:
    said = {} if isinstance(criterion, Sum) else {"loss_reduction": "sum"}
    assert_like(run_split(tmp_path, criterion, lr=0.01, **said), reference(criterion, lr=0.01))


@pytest.mark.parametrize("labels", ["loader", "tensor"])
def test_the_leaf_takes_its_rows_of_its_own_labels(labels: str, tmp_path: Path) -> None:
    own = loader() if labels == "loader" else Y
    assert_like(run_split(tmp_path, mean, lr=0.1, labels=own), reference(mean, lr=0.1))


def test_labels_in_another_order_are_still_noticed(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:10],), {"mask": MASK})
    run_nodes(
        run,
        lambda n: Masked(n, train_loader=loader(), epochs=2).train(),
        criterion=mean,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        labels=loader(X.flip(0)),
        num_microbatches=PARTS,
    )
    assert isinstance(run.errors[run.plan.clusters[0][2]], DataOrderError)


def test_every_node_must_split_alike() -> None:
    root, leaf = (RunSettings(Schedule.ONE_F_ONE_B, 1, None, False, number) for number in (2, 3))
    with pytest.raises(ConfigError, match=r"num_microbatches=3, the root, node 4, with .*=2"):
        leaf.check(root.announcement(), node_id=5, root=4)


@pytest.mark.parametrize("options", [{"num_microbatches": 0}, {"loss_reduction": "median"}])
def test_impossible_options_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:10],), {"mask": MASK}, nodes=1)
    run_nodes(run, lambda node: None, **options)
    (error,) = run.errors.values()
    assert isinstance(error, ConfigError)
    assert next(iter(options)) in str(error)


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 4))
def test_rows_cover_the_batch_once_and_evenly(total: int, number: int, smallest: int) -> None:
    rows = deal_rows(total, number, smallest)
    assert len(rows) == number
    assert (rows[0].start, rows[-1].stop) == (0, total)
    assert all(one.stop == other.start for one, other in itertools.pairwise(rows))
    filled = [each.num_samples for each in rows if each.num_samples]
    assert max(filled) - min(filled) <= 1
    assert min(filled) >= min(smallest, total)
    assert [each.num_samples for each in rows] == sorted(
        (r.num_samples for r in rows), reverse=True
    )


def test_targets_keep_their_types() -> None:
    Pair = namedtuple("Pair", ["images", "names"])
    rows = Rows(2, 4, 6)
    x = torch.arange(6)
    assert take_rows(x, rows).tolist() == [2, 3]
    assert take_rows([None, x], rows)[1].tolist() == [2, 3]
    found = take_rows(Pair(x, list("abcdef")), rows)
    assert (type(found), found.names) == (Pair, ["c", "d"])
    found = take_rows(UserDict(ids=x, more={"size": 3, "all": torch.ones(5)}), rows)
    assert isinstance(found, UserDict)
    assert found["ids"].tolist() == [2, 3]
    assert found["more"]["size"] == 3
    assert len(found["more"]["all"]) == 5
    assert take_rows(x, Rows(0, 6, 6)) is x
