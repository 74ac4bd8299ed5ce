"""Submodules that stay code: exact in value and gradient, and never run on a node not told so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from capture_chain import even_cuts
from capture_leaf_zoo import Branching, Custom
from capture_oracle import assert_bitwise, assert_stages_equal
from torch import nn

from ravnest.capture.exporting import CapturedModel, capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import GRAPH_FILE, LoadedStage, load_stage, write_stage
from ravnest.errors import CaptureError, ConfigError, PlanFileError
from ravnest.node.loading import load_node
from ravnest.node.options import NodeOptions
from ravnest.planning.clusterize import clusterize

CUSTOM, BRANCHING = "capture_leaf_zoo:custom", "capture_leaf_zoo:branching"


class WithCustom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.custom, self.after = nn.Linear(8, 8), Custom(), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(torch.tanh(self.custom(torch.tanh(self.before(x)))))


class WithBranch(nn.Module):
    """Calls the same leaf twice, with different arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.blocks = nn.Linear(8, 8), nn.ModuleList([Branching()])
        self.after = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.tanh(self.before(x))
        first = self.blocks[0](h, {"y": h}, scale=0.5)
        second = self.blocks[0](-h, more={"y": first["y"]})
        return self.after(torch.tanh(second["y"])), *second["sizes"], first["sizes"][0]


MODELS = {
    "custom": (WithCustom, {"custom": CUSTOM}),
    "branch": (WithBranch, {"blocks.0": BRANCHING}),
}


def build(name: str) -> tuple[nn.Module, CapturedModel]:
    torch.manual_seed(0)
    make, leaves = MODELS[name]
    model = make()
    return model, capture_model(model, (torch.randn(4, 8),), leaves=leaves)


def through_files(
    captured: CapturedModel, cuts: list[int], folder: Path, trusted: tuple[str, ...]
) -> list[LoadedStage]:
    for stage in split(captured, cuts):
        write_stage(stage, folder / str(stage.index))
    return [load_stage(folder / str(i), trusted=trusted) for i in range(len(cuts) + 1)]


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_stages_equal_the_model_bit_for_bit(name: str, num_stages: int, tmp_path: Path) -> None:
    model, captured = build(name)
    stages = through_files(captured, even_cuts(captured, num_stages), tmp_path, (CUSTOM, BRANCHING))
    assert len(stages) == num_stages
    for batch in (4, 7):
        x = torch.randn(batch, 8)
        assert_stages_equal(stages, model, (x,), same=assert_bitwise)
        assert_stages_equal(stages, model, (x - 5,), same=assert_bitwise)


@pytest.mark.parametrize("name", MODELS)
def test_every_cut_equals_the_model_bit_for_bit(name: str, tmp_path: Path) -> None:
    model, captured = build(name)
    for cut in captured.costs.cuts:
        folder = tmp_path / str(cut.position)
        stages = through_files(captured, [cut.position], folder, (CUSTOM, BRANCHING))
        assert_stages_equal(stages, model, (torch.randn(3, 8),), same=assert_bitwise)


def test_model_is_as_before() -> None:
    model = WithCustom()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    buffers = [id(buffer) for buffer in model.buffers()]
    capture_model(model, (torch.randn(4, 8),), leaves={"custom": CUSTOM})
    assert [id(buffer) for buffer in model.buffers()] == buffers
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert "forward" not in vars(model.custom)
    assert not model.custom._forward_hooks
    assert not model.custom._forward_pre_hooks


def test_node_that_was_not_told_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, captured = build("custom")
    write_stage(split(captured, [])[0], tmp_path)
    monkeypatch.delitem(sys.modules, "capture_leaf_zoo")
    for trusted in ((), ("capture_leaf_zoo",), (BRANCHING,)):
        with pytest.raises(PlanFileError, match="not told to trust") as caught:
            load_stage(tmp_path, trusted=trusted)
        assert "trusted_modules=('capture_leaf_zoo:custom',)" in str(caught.value)
    assert "capture_leaf_zoo" not in sys.modules


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (CUSTOM, "os:getcwd()", "does not have the form"),
        (CUSTOM, BRANCHING, "builds a module with other tensors"),
        ('"call":{"tuple":', '"call":{"list":', "positional and keyword"),
        ('"call_leaves":[[0,null]]', '"call_leaves":[[7,null]]', "expected an integer"),
        ('"call_leaves":[[0,null]]', '"call_leaves":[[null,{"node":"x"}]]', "plain value"),
        ('"parameters":["linear.weight",', '"parameters":["x","linear.weight",', "for the"),
        ('"op":"leaf"', '"op":"leaf.x"', "not allowed"),
        ('"leaf":{', '"leef":{', "unknown fields"),
    ],
)
def test_leaf_of_a_stage_file_is_checked(old: str, new: str, message: str, tmp_path: Path) -> None:
    _, captured = build("custom")
    write_stage(split(captured, [])[0], tmp_path)
    text = (tmp_path / GRAPH_FILE).read_text()
    assert old in text
    (tmp_path / GRAPH_FILE).write_text(text.replace(old, new))
    with pytest.raises(PlanFileError, match=message):
        load_stage(tmp_path, trusted=(CUSTOM, BRANCHING))


@pytest.mark.parametrize(
    ("leaves", "message"),
    [
        ({"custm": CUSTOM}, "no submodule"),
        ({"": CUSTOM}, "no submodule"),
        ({"custom": "custom"}, "package.module:function"),
        ({"custom": "no_such_package:make"}, "ModuleNotFoundError"),
        ({"custom": "capture_leaf_zoo:broken"}, "no such licence"),
        ({"custom": "capture_leaf_zoo:no_module"}, "returned a int"),
        ({"custom": BRANCHING}, r"other tensors: \['a.bias'"),
        ({"custom": CUSTOM, "custom.linear": CUSTOM}, "as well as itself"),
    ],
)
def test_leaves_that_cannot_be_meant(leaves: dict[str, str], message: str) -> None:
    with pytest.raises(CaptureError, match=message):
        capture_model(WithCustom(), (torch.randn(4, 8),), leaves=leaves)


def test_from_clusterize_to_the_node_that_trusts_it(tmp_path: Path) -> None:
    nodes = {
        str(i): {"IP": f"127.0.0.1:{8000 + i}", "benchmarks": {"ram": 1, "bandwidth": 20}}
        for i in range(2)
    }
    (tmp_path / "node_configs.json").write_text(json.dumps(nodes))
    model = WithCustom()
    plan = clusterize(
        model,
        (torch.randn(4, 8),),
        node_data=tmp_path,
        num_clusters=1,
        leaves={"custom": CUSTOM},
    )
    assert len(plan.stages) == 2
    trusted = NodeOptions.parse({"trusted_modules": [CUSTOM]}).trusted_modules
    stages = [load_node(tmp_path, stage.node_id, trusted)[1] for stage in plan.stages]
    assert_stages_equal(stages, model, (torch.randn(3, 8),), same=assert_bitwise)
    refusing = 0
    for stage in plan.stages:
        try:
            load_node(tmp_path, stage.node_id)
        except PlanFileError as error:
            assert "not told to trust" in str(error)  # noqa: PT017
            refusing += 1
    assert refusing == 1
    with pytest.raises(ConfigError, match="expected a tuple of strings"):
        NodeOptions.parse({"trusted_modules": CUSTOM})


def test_error_without_a_leaf_says_what_to_register() -> None:
    for model, path, kind in (
        (WithCustom(), "custom", "Custom"),
        (WithBranch(), "blocks.0", "Branching"),
    ):
        with pytest.raises(CaptureError) as caught:
            capture_model(model, (torch.randn(4, 8),))
        message = str(caught.value)
        assert f"in module {path!r} ({kind}) at " in message
        assert "capture_leaf_zoo.py:" in message
        assert f"leaves={{{path!r}: 'package.module:function'}}" in message
        assert "trusted_modules=('package.module:function',)" in message
