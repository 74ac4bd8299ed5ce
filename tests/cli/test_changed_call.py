"""Changes applied to nodes, to the options of a call and to its example."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from ravnest.cli.whatif.arguments import changed_arguments
from ravnest.cli.whatif.batch import rebatched
from ravnest.cli.whatif.changes import BatchChanged
from ravnest.cli.whatif.grammar import parse_change, parse_changes
from ravnest.cli.whatif.nodes import changed_nodes
from ravnest.config import NodeConfig
from ravnest.errors import ConfigError

NODES = tuple(NodeConfig(i, f"10.0.0.{i}:80", f"0.0.0.0:{i}", 4.0, 100.0) for i in (1, 3, 5))


def _changed(*texts: str) -> tuple[NodeConfig, ...]:
    return changed_nodes(NODES, parse_changes(texts))


def test_numbers_of_a_node_change_and_nothing_else() -> None:
    nodes = _changed("node.3.ram=16", "node.3.latency=5", "node.5.flops=20", "schedule=async")
    assert nodes == (
        NODES[0],
        NodeConfig(3, "10.0.0.3:80", "0.0.0.0:3", 16.0, 100.0, latency_ms=5.0),
        NodeConfig(5, "10.0.0.5:80", "0.0.0.0:5", 4.0, 100.0, flops_gflops=20.0),
    )


def test_nodes_come_and_go() -> None:
    assert [node.node_id for node in _changed("-node.1")] == [3, 5]
    added = _changed("-node.5", "+node ram=2,bandwidth=7", "+node ram=1,bandwidth=1,flops=9")
    assert [node.node_id for node in added] == [1, 3, 6, 7]
    assert (added[2].ram_gb, added[2].bandwidth_mbps, added[2].flops_gflops) == (2, 7, None)
    assert added[3].flops_gflops == 9
    assert len({node.address for node in added}) == 4


def test_an_added_node_can_be_changed_after() -> None:
    assert _changed("+node ram=2,bandwidth=7", "node.6.ram=3")[-1].ram_gb == 3


def test_nodes_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match=r"'node\.2\.ram=1': there is no node 2") as caught:
        _changed("node.2.ram=1")
    assert caught.value.hint == "there are 1, 3, 5"
    with pytest.raises(ConfigError, match="no node 9"):
        _changed("-node.9")
    with pytest.raises(ConfigError, match="leave no node"):
        _changed("-node.1", "-node.3", "-node.5")


def _function(
    model: Any, example_args: Any = (), example_kwargs: Any = None, schedule: str = "1f1b"
) -> None:
    """Has some options of clusterize."""


def test_options_change_by_name() -> None:
    arguments = {"model": nn.ReLU(), "schedule": "1f1b"}
    changed, notes = changed_arguments(_function, arguments, [parse_change("schedule=async")])
    assert changed == {**arguments, "schedule": "async"}
    assert arguments["schedule"] == "1f1b"
    assert notes == []


def test_an_option_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'recompute=true': clusterize of this version .* has no"
    ):
        changed_arguments(_function, {}, [parse_change("recompute=true")])


def test_an_optimizer_replaces_the_count_of_its_states() -> None:
    def function(model: Any, optimizer: Any = None, optimizer_states: int = 2) -> None: ...

    changed, _ = changed_arguments(
        function, {"optimizer_states": 1}, [parse_change("optimizer=SGD")]
    )
    assert changed == {"optimizer": torch.optim.SGD}


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


def test_an_example_is_tiled() -> None:
    x = torch.arange(12.0).reshape(4, 3)
    table, scale = torch.rand(7, 2), torch.tensor(2.0)
    example = ((x, Pair(x[:, 0], [table])), {"scale": scale, "flag": True, "mask": x > 3})
    (args, kwargs), note = rebatched(example, BatchChanged(2.5, is_factor=True))
    rows = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert torch.equal(args[0], x[rows])
    assert isinstance(args[1], Pair)
    assert torch.equal(args[1].left, x[rows, 0])
    assert args[1].right[0] is table
    assert kwargs["scale"] is scale
    assert kwargs["flag"] is True
    assert torch.equal(kwargs["mask"], (x > 3)[rows])
    assert note == "example batch 4 -> 10: 3 tensors tiled, 2 tensors without that batch kept"


def test_an_example_is_cut() -> None:
    x = torch.rand(4, 3, requires_grad=True)
    (args, kwargs), note = rebatched(((x,), None), BatchChanged(3, is_factor=False))
    assert torch.equal(args[0], x[:3])
    assert kwargs is None
    assert note == "example batch 4 -> 3: 1 tensor cut"


def test_an_example_on_the_meta_device_is_tiled() -> None:
    (args, _), _ = rebatched(((torch.empty(2, 5, device="meta"),), None), BatchChanged(6, False))
    assert args[0].shape == (6, 5)
    assert args[0].is_meta


@pytest.mark.parametrize(
    ("example", "change", "words"),
    [
        ((torch.rand(3, 2),), "batch=0.5x", "0.5 times the example's 3 samples is 1.5"),
        ((torch.tensor(1.0),), "batch=4", "no tensor with samples"),
        ((torch.rand(0, 2),), "batch=4", "no tensor with samples"),
        ((), "batch=4", "no tensor with samples"),
    ],
)
def test_batches_that_cannot_be(example: Any, change: str, words: str) -> None:
    parsed = parse_change(change)
    assert isinstance(parsed, BatchChanged)
    with pytest.raises(ConfigError, match=words):
        rebatched((example, None), parsed)
