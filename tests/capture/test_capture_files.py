"""Stage files: deterministic when written, refused by name of file and field when altered."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from capture_chain import even_cuts, through_files, train_chain
from capture_zoo import CASES, build, call, captured
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from ravnest.capture import strict_json
from ravnest.capture.exporting import capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import GRAPH_FILE, WEIGHTS_FILE, load_stage, write_stage
from ravnest.errors import CaptureError, PlanFileError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The only stage of the GPT, written."""
    write_stage(split(captured("gpt"), [])[0], tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_same_stage_gives_same_bytes(name: str, tmp_path: Path) -> None:
    again = capture_model(build(name), *call(name))
    for stage, other in zip(
        split(captured(name), even_cuts(captured(name), 2)),
        split(again, even_cuts(again, 2)),
        strict=True,
    ):
        for each, place in ((stage, "a"), (other, "b")):
            write_stage(each, tmp_path / place)
        for file in (GRAPH_FILE, WEIGHTS_FILE):
            assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [GRAPH_FILE, WEIGHTS_FILE]


def test_order_and_flags_survive() -> None:
    stages = through_files(captured("frozen"), even_cuts(captured("frozen"), 2))
    model = build("frozen")
    names = [name for stage in stages for name in stage.parameters]
    assert names == [name for name, _ in model.named_parameters()]
    trainable = {name for stage in stages for name in stage.trainable}
    assert trainable == {name for name, p in model.named_parameters() if p.requires_grad}
    assert stages[0].signature is not None
    assert stages[1].signature is None
    assert [stage.index for stage in stages] == [0, 1]
    assert not any(t.requires_grad for stage in stages for t in stage.parameters.values())


def test_non_persistent_buffers_are_constants() -> None:
    stages = through_files(captured("buffers"), even_cuts(captured("buffers"), 2))
    assert any("scale" in stage.constants for stage in stages)
    assert not any("scale" in stage.buffers for stage in stages)
    assert any("idle" in stage.buffers for stage in stages)


Edit = Callable[[dict[str, Any]], object]


def _first_node(data: dict[str, Any]) -> dict[str, Any]:
    return data["train"]["nodes"][1]


def _deep(data: dict[str, Any]) -> None:
    value: Any = 1
    for _ in range(40):
        value = [value]
    _first_node(data)["args"][0] = value


EDITS: dict[str, tuple[Edit, str]] = {
    "from_file": (
        lambda d: _first_node(d).update(op="aten::from_file.default", args=["/etc/passwd"]),
        r"train.nodes\[1\].op: operator 'aten::from_file.default' is not allowed",
    ),
    "set": (lambda d: _first_node(d).update(op="aten::set_.source_Storage"), "is not allowed"),
    "resize": (lambda d: _first_node(d).update(op="aten::resize_.default"), "is not allowed"),
    "out_variant": (lambda d: _first_node(d).update(op="aten::add.out"), "is not allowed"),
    "namespace": (lambda d: _first_node(d).update(op="prims::add.default"), "is not allowed"),
    "python": (lambda d: _first_node(d).update(op="operator::attrgetter"), "is not allowed"),
    "unknown_field": (lambda d: d.update(code="import os"), r"unknown fields \['code'\]"),
    "unknown_node_field": (lambda d: _first_node(d).update(x=1), r"unknown fields \['x'\]"),
    "missing_field": (lambda d: d.pop("eval"), r"lacks \['eval'\]"),
    "schema": (lambda d: d.update(schema=99), "schema: expected 1, got 99"),
    "keyword": (
        lambda d: _first_node(d).update(kwargs={"a=__import__('os'), b": 1}),
        r"kwargs: aten.* does not take",
    ),
    "many_arguments": (lambda d: _first_node(d)["args"].extend([1] * 50), "arguments, aten"),
    "string_for_tensor": (
        lambda d: _first_node(d)["args"].__setitem__(0, "x"),
        r"train.nodes\[1\].args: aten.* takes .*Tensor.* as '.*', not 'x'",
    ),
    "tensor_list_for_tensor": (
        lambda d: _first_node(d)["args"].__setitem__(0, [1.0]),
        r"takes .*Tensor.* as '.*', not \[1.0\]",
    ),
    "too_few_arguments": (lambda d: _first_node(d)["args"].clear(), "lacks its argument"),
    "reference": (lambda d: _first_node(d)["args"].insert(0, {"node": "no"}), "there is no node"),
    "state": (lambda d: _first_node(d)["args"].insert(0, {"state": "no"}), "there is no state"),
    "tag": (lambda d: _first_node(d)["args"].insert(0, {"eval": "1"}), "is no argument"),
    "huge_integer": (lambda d: _first_node(d)["args"].insert(0, 10**30), "integer from"),
    "deep": (_deep, "nested deeper"),
    "duplicate_name": (
        lambda d: _first_node(d).update(name=d["train"]["nodes"][0]["name"]),
        "is used twice",
    ),
    "long_name": (lambda d: _first_node(d).update(name="x" * 2000), "at most 1024 characters"),
    "shape": (lambda d: d["parameters"][0].update(shape=[1, 2]), r"has shape .* says \[1, 2\]"),
    "dtype": (lambda d: d["parameters"][0].update(dtype="int8"), "says torch.int8"),
    "bad_dtype": (lambda d: d["parameters"][0].update(dtype="object"), "unknown dtype 'object'"),
    "extra_tensor": (lambda d: d["parameters"].pop(), "there is no state|not declared"),
    "declared_twice": (lambda d: d["buffers"].append(_as_buffer(d)), "declared twice"),
    "outputs": (lambda d: d["train"]["results"].pop(), "values for 2 outputs"),
    "structure": (lambda d: d["train"].update(structure={"tuple": [0, 9]}), "leaf 9 of 2"),
    "signature": (lambda d: d["signature"]["leaves"].pop(), "signature.*names leaf"),
    "guard": (lambda d: d["signature"]["guards"].append(["os", 1]), "unknown part"),
    "stage": (lambda d: d.update(stage=1), "stage: expected an integer from 0 to 0"),
    "bool_as_int": (lambda d: d.update(stage=False), "expected an integer"),
    "random": (lambda d: _first_node(d).update(random="0"), "expected an integer"),
}


def _as_buffer(data: dict[str, Any]) -> dict[str, Any]:
    return {key: data["parameters"][0][key] for key in ("name", "dtype", "shape")}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_graph_is_refused(name: str, folder: Path) -> None:
    edit, message = EDITS[name]
    path = folder / GRAPH_FILE
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))
    with pytest.raises(PlanFileError, match=message) as caught:
        load_stage(folder)
    assert str(folder) in str(caught.value)


JUNK = [None, True, -1, 2**63, 1e308, "", "x", "aten::add.Tensor", "operator::add", [], [[]], {}]
JUNK += [{"node": "no"}, {"dtype": "int8"}, {"slice": [1]}, {"a": 1, "b": 2}, {"tuple": [0]}]


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    pairs = (
        data.items() if isinstance(data, dict) else enumerate(data if type(data) is list else ())
    )
    for key, child in pairs:
        yield from _places(child, (*path, key))


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_any_single_change_is_harmless_or_refused(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "changed"
    write_stage(split(captured("dict"), [])[0], folder)
    graph = json.loads((folder / GRAPH_FILE).read_text())
    *parents, last = data.draw(st.sampled_from([p for p in _places(graph) if p]))
    parent = graph
    for key in parents:
        parent = parent[key]
    parent[last] = data.draw(st.sampled_from(JUNK))
    (folder / GRAPH_FILE).write_text(json.dumps(graph))
    with contextlib.suppress(PlanFileError):
        load_stage(folder)


@pytest.mark.parametrize(
    "text", ["", "[", "NaN", '{"a": 1, "a": 2}', "[" * 100_000, "\xff", "1" * 9999, "[]", "3"]
)
def test_bytes_that_are_no_graph_are_refused(text: str, folder: Path) -> None:
    (folder / GRAPH_FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanFileError, match=GRAPH_FILE):
        load_stage(folder)


def test_an_oversized_graph_is_refused_before_it_is_read(folder: Path) -> None:
    with (folder / GRAPH_FILE).open("r+b") as file:
        file.truncate(strict_json.MAX_BYTES + 1)
    with pytest.raises(PlanFileError, match="at most 67108864 are allowed"):
        load_stage(folder)


def test_weights_that_do_not_match_are_refused(folder: Path) -> None:
    path = folder / WEIGHTS_FILE
    tensors = load_file(path)
    save_file({**tensors, "more": torch.zeros(1)}, path)
    with pytest.raises(PlanFileError, match=r"tensors \['more'\] are not declared"):
        load_stage(folder)
    tensors.pop("wte.weight")
    save_file(tensors, path)
    with pytest.raises(PlanFileError, match=r"tensors \['wte.weight'\] are missing"):
        load_stage(folder)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(PlanFileError, match=WEIGHTS_FILE):
        load_stage(folder)
    path.unlink()
    with pytest.raises(PlanFileError, match=WEIGHTS_FILE):
        load_stage(folder)
    (folder / GRAPH_FILE).unlink()
    with pytest.raises(PlanFileError, match=GRAPH_FILE):
        load_stage(folder)


def test_uninitialised_memory_is_zeroed() -> None:
    class Leaking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 0 + torch.empty_like(x) + torch.empty(8) + x.new_empty(8)

    x = torch.randn(4, 8)
    (stage,) = through_files(capture_model(Leaking(8, 8), (x,)), [])
    assert torch.equal(train_chain([stage], (x,), {}).output, torch.zeros(4, 8))


def test_weights_without_values_cannot_be_written(tmp_path: Path) -> None:
    model = nn.Linear(8, 8, device="meta")
    stages = split(capture_model(model, (torch.randn(4, 8, device="meta"),)), [])
    with pytest.raises(CaptureError, match="weight is on the meta device"):
        write_stage(stages[0], tmp_path)


def test_loaded_tensors_own_their_memory() -> None:
    class Sharing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            base = torch.randn(4, 8)
            self.first, self.second = nn.Parameter(base[:2]), nn.Parameter(base[2:].T)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.first.T @ self.second.T

    model = Sharing()
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.randn(3, 7))
    (stage,) = through_files(capture_model(model, (torch.randn(3, 8),)), [])
    assert torch.equal(stage.parameters["second"], model.second)
    pointers = {t.untyped_storage().data_ptr() for t in stage.parameters.values()}
    assert len(pointers) == 2


PROVIDER = """
import sys
from pathlib import Path
import torch
from ravnest.capture.stage_file import load_stage

stages = [load_stage(Path(folder)) for folder in sys.argv[2:]]
torch.manual_seed(1)
ids, targets = torch.randint(0, 40, (3, 6)), torch.randint(0, 40, (3, 6))
values = stages[0].signature.bind((ids,), {"targets": targets})
for stage in stages:
    state = {**stage.parameters, **stage.buffers, **stage.constants}
    values = stage.eval(state, values, lambda position: None)
torch.save(list(values.values()), sys.argv[1])
assert not [name for name in sys.modules if "capture_zoo" in name]
assert "ravnest.capture.exporting" not in sys.modules, "a provider needs no exporter"
"""


@pytest.mark.processes
def test_a_process_without_the_models_class_runs_its_stages(tmp_path: Path) -> None:
    model = build("gpt").eval()
    folders = []
    for stage in split(captured("gpt"), even_cuts(captured("gpt"), 2)):
        folders.append(str(tmp_path / str(stage.index)))
        write_stage(stage, Path(folders[-1]))
    result = tmp_path / "result.pt"
    subprocess.run(
        [sys.executable, "-c", PROVIDER, str(result), *folders],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        check=True,
        timeout=100,
    )
    torch.manual_seed(1)
    ids, targets = torch.randint(0, 40, (3, 6)), torch.randint(0, 40, (3, 6))
    expected = model(ids, targets)
    for one, other in zip(torch.load(result, weights_only=True), expected, strict=True):
        torch.testing.assert_close(one, other)
