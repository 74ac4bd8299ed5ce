"""Where a stage computes: devices that are not there, and batches on their way to one."""

from __future__ import annotations

import collections
import logging
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from ravnest import Node
from ravnest.errors import ConfigError
from ravnest.node.devices import moved, usable_device, warn_unplanned

META = torch.device("meta")


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


class Tokens(collections.UserDict):  # type: ignore[type-arg]
    """As tokenizers return it."""

    def to(self, device: Any) -> Tokens:
        return Tokens({key: value.to(device) for key, value in self.items()})


@pytest.mark.parametrize("device", ["nowhere", "cuda:99", "cpu:0:0", 3.5])
def test_a_device_that_is_not_there_is_refused(device: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"device='.*' cannot be used: "):
        usable_device(device)
    with pytest.raises(ConfigError, match="cannot be used"):
        Node("node_0", device=device, node_data=tmp_path)


def test_a_batch_is_moved_in_its_own_types() -> None:
    x = torch.ones(2)
    batch = [x, (x, "text"), {"a": x, "b": 1}, Pair(x, "p"), Tokens({"ids": x}), None]
    there = moved(batch, META)
    assert [type(each) for each in there] == [type(each) for each in batch]
    leaves = [there[0], there[1][0], there[2]["a"], there[3].x, there[4]["ids"]]
    assert all(leaf.device == META for leaf in leaves)
    assert (there[1][1], there[2]["b"], there[3].name, there[5]) == ("text", 1, "p", None)
    assert x.device.type == "cpu"


def test_a_packed_sequence_keeps_its_sizes_on_the_cpu() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    there = moved([packed], META)[0]
    assert there.data.device == META
    assert there.batch_sizes.device.type == "cpu"


def test_another_device_than_planned_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="ravnest"):
        warn_unplanned(torch.device("cpu"), None)
        warn_unplanned(torch.device("cpu"), "cpu")
        warn_unplanned(torch.device("cuda", 1), "cuda:0")
        assert not caplog.records
        warn_unplanned(torch.device("cpu"), "cuda:0")
    assert "planned for device 'cuda:0'" in caplog.text
