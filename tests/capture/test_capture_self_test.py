"""The self-test passes every model of the small zoo, and catches what a broken split computes."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from capture_chain import assert_same, even_cuts
from capture_zoo import CASES, build, call, captured
from safetensors.torch import load_file, save_file
from torch import nn

from ravnest.capture.exporting import CapturedModel, capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import GRAPH_FILE, WEIGHTS_FILE, write_stage
from ravnest.errors import CaptureError
from ravnest.planning.checking.self_test import SelfTest, prepare_test

Edit = Callable[[dict[str, Any]], None]


def write(captured: CapturedModel, num_stages: int, folder: Path) -> list[Path]:
    """Writes a model in stages; their folders from root to leaf."""
    folders = []
    for stage in split(captured, even_cuts(captured, num_stages)):
        folders.append(folder / str(stage.index))
        write_stage(stage, folders[-1])
    return folders


def prepared(name: str, model: nn.Module) -> SelfTest:
    test = prepare_test(model, *call(name), captured(name))
    assert test is not None
    return test


@pytest.mark.parametrize("name", CASES)
def test_every_model_of_the_zoo_passes(name: str, tmp_path: Path) -> None:
    test = prepared(name, build(name))
    for num_stages in (1, 3):
        test.check(write(captured(name), num_stages, tmp_path / str(num_stages)))


def _nodes(mode: str, op: str, change: Callable[[dict[str, Any]], None]) -> Edit:
    """Changes every node of an operator in one mode."""

    def edit(graph: dict[str, Any]) -> None:
        found = [node for node in graph[mode]["nodes"] if node["op"] == op]
        for node in found:
            change(node)

    return edit


def _argument(index: int, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda node: node["args"].__setitem__(index, value)


def _operator(op: str) -> Callable[[dict[str, Any]], None]:
    def change(node: dict[str, Any]) -> None:
        node.update(op=op, args=node["args"][:1])
        node.pop("random", None)

    return change


def _count_two(node: dict[str, Any]) -> None:
    if node["args"][1] == 1:
        node["args"][1] = 2


def _twice(graph: dict[str, Any]) -> None:
    """The first dropout is drawn twice, the first mask for nothing."""
    nodes = graph["train"]["nodes"]
    at = next(i for i, node in enumerate(nodes) if node["op"] == "aten::dropout.default")
    nodes.insert(at, {**nodes[at], "name": "lost"})


def _detach(graph: dict[str, Any]) -> None:
    """Where the first activation goes on, its gradient no longer comes back."""
    nodes = graph["train"]["nodes"]
    at = next(i for i, node in enumerate(nodes) if node["op"] == "aten::relu.default")
    nodes.insert(at, {"name": "cut", "op": "aten::detach.default", "args": nodes[at]["args"]})
    nodes[at + 1]["args"] = [{"node": "cut"}]


BROKEN: dict[str, tuple[str, Edit, str]] = {
    "another operator": (
        "cnn",
        _nodes("train", "aten::max_pool2d.default", _operator("aten::clone.default")),
        "differs from the model: output by",
    ),
    "detached": ("unet", _detach, "differs from the model: gradient of 'd1"),
    "momentum": (
        "cnn",
        _nodes("train", "aten::batch_norm.default", _argument(6, 0.2)),
        r"model: buffer after a training pass 'b\d.running_mean' by",
    ),
    "dropout off": (
        "mlp",
        _nodes("train", "aten::dropout.default", _argument(2, False)),
        "draws other random numbers",
    ),
    "another dropout": (
        "mlp",
        _nodes("train", "aten::dropout.default", _argument(1, 0.21)),
        "gradient of|output",
    ),
    "dropout twice": ("mlp", _twice, "draws other random numbers"),
    "eval only": (
        "gpt",
        _nodes("eval", "aten::gelu.default", _operator("aten::relu.default")),
        "output in eval mode '0'",
    ),
    "slightly": (
        "residual",
        _nodes("train", "aten::batch_norm.default", _argument(7, 2e-3)),
        "gradient of|output",
    ),
    "another update": (
        "buffers",
        _nodes("train", "aten::add_.Tensor", lambda node: node.pop("kwargs", None)),
        "differs from the model: output by",
    ),
    "integer": (
        "buffers",
        _nodes("train", "aten::add_.Tensor", _count_two),
        "buffer after a training pass 'count' by 1, where at most 0",
    ),
    "other nesting": (
        "gpt",
        lambda graph: graph["train"].update(structure={"list": [0, 1]}),
        "outputs nest as",
    ),
    "outputs swapped": (
        "several",
        lambda graph: graph["eval"]["results"].reverse(),
        "output in eval mode '0' by inf",
    ),
    "not runnable": (
        "cnn",
        _nodes("train", "aten::linear.default", _operator("aten::squeeze.default")),
        "cannot be run on the example: RuntimeError",
    ),
    "not loadable": (
        "mlp",
        lambda graph: graph.update(schema=99),
        "PlanFileError.*expected 1, got 99",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_stage_is_caught_and_named(fault: str, tmp_path: Path) -> None:
    name, edit, message = BROKEN[fault]
    for num_stages in (1, 2):
        folders = write(captured(name), num_stages, tmp_path / str(num_stages))
        changed = 0
        for folder in folders if num_stages > 1 else folders[-1:]:
            path = folder / GRAPH_FILE
            graph = json.loads(path.read_text())
            if fault in ("other nesting", "outputs swapped") and folder is not folders[-1]:
                continue
            with contextlib.suppress(StopIteration):
                edit(graph)
            changed += path.read_text() != json.dumps(graph, sort_keys=True, separators=(",", ":"))
            path.write_text(json.dumps(graph))
        assert changed
        with pytest.raises(CaptureError, match=message) as caught:
            prepared(name, build(name)).check(folders)
        assert f"in {num_stages} stages" in str(caught.value) or fault == "other nesting"
        assert "self_test=False" in str(caught.value)


def test_a_changed_weight_is_caught(tmp_path: Path) -> None:
    (folder,) = write(captured("gpt"), 1, tmp_path)
    tensors = load_file(folder / WEIGHTS_FILE)
    tensors["head.weight"][3, 3] += 0.01
    save_file(tensors, folder / WEIGHTS_FILE)
    with pytest.raises(
        CaptureError, match=r"self-test failed, nothing was written: capture_zoo\.Gpt"
    ):
        prepared("gpt", build("gpt")).check([folder])


@pytest.mark.parametrize("name", ["buffers", "cnn", "spectral", "views", "norm_twice"])
def test_the_model_is_as_before(name: str, tmp_path: Path) -> None:
    model = build(name)
    list(model.children())[-1].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    random.seed(5)
    np.random.seed(6)

    def remembered() -> Any:
        return (
            {n: t.clone() for n, t in model.state_dict().items()},
            [id(t) for t in (*model.parameters(), *model.buffers())],
            [p.grad.clone() for p in model.parameters() if p.grad is not None],
            [module.training for module in model.modules()],
            [sorted(vars(module)) for module in model.modules()],
            (torch.get_rng_state(), random.getstate(), np.random.get_state()),
            torch.backends.mha.get_fastpath_enabled(),
        )

    captured_model = capture_model(model, *call(name))
    args, kwargs = call(name)
    before, given = remembered(), copy.deepcopy(args)
    test = prepare_test(model, args, kwargs, captured_model)
    assert test is not None
    test.check(write(captured_model, 2, tmp_path))
    assert str(remembered()) == str(before)
    assert_same(args, given)


def test_embeddings_that_renormalise_themselves_are_put_back(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(9, 8, max_norm=0.5), nn.Linear(8, 3))
    before = copy.deepcopy(model.state_dict())
    example = (torch.randint(0, 9, (4, 3)),)
    captured_model = capture_model(model, example)
    test = prepare_test(model, example, {}, captured_model)
    assert test is not None
    assert_same(dict(model.state_dict()), dict(before))


def test_a_number_that_python_draws_is_caught(tmp_path: Path) -> None:
    class Noisy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * random.random()

    model, example = Noisy(8, 8), (torch.randn(4, 8),)
    captured_model = capture_model(model, example)
    test = prepare_test(model, example, {}, captured_model)
    assert test is not None
    with pytest.raises(CaptureError, match="self-test failed"):
        test.check(write(captured_model, 1, tmp_path))


def test_a_model_that_fails_itself_is_told_apart() -> None:
    model, example = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 3)), torch.zeros(4, 3).long()
    captured_model = capture_model(model, (example,))
    with pytest.raises(CaptureError, match=r"cannot run Sequential itself .* in train mode: index"):
        prepare_test(model, (example + 20,), {}, captured_model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_pass(dtype: torch.dtype, tmp_path: Path) -> None:
    model = nn.TransformerEncoderLayer(16, 4, 32, dtype=dtype)
    example = (torch.randn(6, 1, 16, dtype=dtype),)
    captured_model = capture_model(model, example)
    test = prepare_test(model, example, {}, captured_model)
    assert test is not None
    test.check(write(captured_model, 2, tmp_path))


def test_a_model_without_values_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    model, example = nn.Linear(8, 8, device="meta"), (torch.randn(4, 8),)
    with caplog.at_level(logging.INFO, "ravnest"):
        assert prepare_test(model, example, {}, capture_model(model, example)) is None
    assert "no self-test of torch.nn.modules.linear.Linear: its tensors are on" in caplog.text


def test_a_model_larger_than_memory_is_skipped(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    little = psutil.virtual_memory()._replace(available=2048)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    with caplog.at_level(logging.INFO, "ravnest"):
        assert prepare_test(build("mlp"), *call("mlp"), captured("mlp")) is None
    assert "of memory, 2.05 kB are free" in caplog.text


def test_gradients_of_replicas_are_summed(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.mid = nn.Embedding(9, 8), nn.Linear(8, 8)
            self.head = nn.Linear(8, 9, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.mid(self.emb(ids))))

    model, example = Tied(), (torch.randint(0, 9, (4, 3)),)
    captured_model = capture_model(model, example)
    test = prepare_test(model, example, {}, captured_model)
    assert test is not None
    folders = write(captured_model, 2, tmp_path)
    assert "emb.weight" in load_file(folders[1] / WEIGHTS_FILE)
    test.check(folders)
