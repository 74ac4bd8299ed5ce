"""Every sample of every epoch is trained once or reported, whatever happens to messages."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from delaying_network import DelayingNetwork
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer
from ravnest.errors import LedgerError
from ravnest.transport.interface import Message
from ravnest.transport.memory import MemoryNetwork
from ravnest.wire.codec import decode, encode
from ravnest.wire.frame import Codec, FrameKind

X = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (30,), generator=torch.Generator().manual_seed(1))


def build() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (torch.nn.Linear(6, 6), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(6, 3))


def loader(drop_last: bool = False) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=4, drop_last=drop_last)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_plan(tmp_path_factory.mktemp("planned"), build(), (X[:4],))


@pytest.fixture
def run(planned: Run, tmp_path: Path) -> Run:
    """Three stages, planned once for all tests."""
    shutil.copytree(planned.folder / "node_data", tmp_path / "node_data")
    return Run(tmp_path, planned.plan)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


SGD: dict[str, Any] = {
    "optimizer": torch.optim.SGD,
    "optimizer_params": {"lr": 0.1},
    "criterion": criterion,
}


def train(node: Node, **options: Any) -> None:
    Trainer(node, train_loader=loader(**options), epochs=2).train()


def ledgers(run: Run, cluster: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Of the root and of the leaf, without what every event has."""
    nodes = run.plan.clusters[cluster]
    common = {"time", "node", "cluster", "stage", "event"}
    root, leaf = (
        [{k: v for k, v in event.items() if k not in common} for event in run.events(n, "ledger")]
        for n in (nodes[0], nodes[-1])
    )
    return root, leaf


OF_LOADER = ("skipped", "unread", "cut_off")


@pytest.mark.parametrize(
    ("schedule", "num_microbatches"), [("1f1b", 1), ("zb-h1", 3), ("2bw", 3), ("async", 3)]
)
def test_root_and_leaf_agree_under_every_schedule(
    schedule: str, num_microbatches: int, run: Run
) -> None:
    run_cleanly(
        run, train, schedule=schedule, num_microbatches=num_microbatches, update_frequency=2, **SGD
    )
    root, leaf = ledgers(run)
    assert [entry["epoch"] for entry in leaf] == [0, 1]
    for entry, (own, step) in zip(leaf, zip(root, ("1-4", "5-8"), strict=True), strict=True):
        assert {name: own.pop(name) for name in OF_LOADER} == dict.fromkeys(OF_LOADER, "")
        assert entry == own
        assert (entry["batches"], entry["num_samples"], entry["steps"]) == ("0-7", 30, step)
        assert entry["num_microbatches"] == 8 * num_microbatches
    assert ledgers(run, 0)[0][0]["digest"] == leaf[1]["digest"], "the same batches every epoch"


def test_messages_that_overtake_each_other_change_nothing(run: Run) -> None:
    found = [
        ledgers(run_cleanly(run, train, network=network, schedule="async", **SGD))
        for network in (MemoryNetwork(), DelayingNetwork(0), DelayingNetwork(1))
    ]
    assert found[0] == found[1] == found[2]


def test_clusters_have_every_batch_between_them(tmp_path: Path) -> None:
    """7 batches over two clusters: an uneven share loses nothing, drop_last two samples."""
    run = make_plan(tmp_path, build(), (X[:4],), nodes=2, clusters=2)
    run_cleanly(run, lambda node: train(node, drop_last=True), **SGD)
    found = [ledgers(run, cluster)[0][0] for cluster in (0, 1)]
    assert [entry["batches"] for entry in found] == ["0-6:2", "1-5:2"]
    assert [entry["num_samples"] for entry in found] == [16, 12]
    assert [entry["cut_off"] for entry in found] == ["28-29", "28-29"]


class Choosing(Trainer):
    """Passes over batch 2, and breaks off after batch 4."""

    def train(self) -> None:
        self.prelim_checks()
        for number, (x, _) in enumerate(self.train_loader or ()):
            if number != 2:
                self.node.forward_compute(x)
            if number == 4:
                break
        self.node.wait_for_backwards()


def test_what_a_script_does_not_train_on_is_reported(run: Run) -> None:
    run_cleanly(run, lambda node: Choosing(node, train_loader=loader()).train(), **SGD)
    (root,), (leaf,) = ledgers(run)
    assert root["batches"] == leaf["batches"] == "0-1, 3-4"
    assert (root["skipped"], root["unread"], root["cut_off"]) == ("2", "5-7", "")


class Tampering(MemoryNetwork):
    """Says on the way to the leaf that a microbatch is of another batch."""

    def __init__(self, leaf: int) -> None:
        super().__init__()
        self._leaf = leaf
        self.num_changed = 0

    def carry(self, receiver: int, item: Any) -> None:
        if receiver == self._leaf and item.lane == "forward":
            frame = decode(item.message.header, memoryview(item.message.payload[0]))
            if frame.kind is FrameKind.ACTIVATION and frame.details["batch"] == 3:
                details = {**frame.details, "batch": 4}
                header, payload = encode(dataclasses.replace(frame, details=details), Codec.RAW)
                message = Message(bytes(header), (b"".join(bytes(p) for p in payload),))
                item = dataclasses.replace(item, message=message)
                self.num_changed += 1
        super().carry(receiver, item)


def test_a_batch_that_changes_on_the_way_ends_the_run(run: Run) -> None:
    network = Tampering(run.plan.clusters[0][-1])
    run_nodes(run, train, network=network, **SGD)
    assert network.num_changed == 1
    words = (
        r"epoch 0: the root \(node \d\) sent 30 samples in 8 microbatches, node \d trained 30 "
        "samples in 8 microbatches: batches 3 sent but not trained"
    )
    with pytest.raises(LedgerError, match=words):
        raise run.errors[run.plan.clusters[0][-1]]
    assert len(run.errors) == 3
