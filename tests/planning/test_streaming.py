"""Models without weights: planned on the meta device, stages filled from files or a callable."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ravnest.capture.exporting import capture_model
from ravnest.errors import ConfigError
from ravnest.planning.clusterize import clusterize
from ravnest.planning.streaming import wholly_on_meta


class Tied(nn.Module):
    """Tied embedding, batch norm, and a table that no published file has."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mid, self.head = nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.linspace(0, 1, 8), persistent=False)
        self.norm, self.tail = nn.BatchNorm1d(11), nn.Linear(11, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.mid(self.embed(ids))) + self.table
        x = self.norm(torch.tanh(self.head(x)).flatten(0, 1))
        return self.tail(torch.tanh(x))


EXAMPLE = (torch.arange(12).reshape(4, 3) % 11,)


def real_model() -> Tied:
    torch.manual_seed(7)
    model = Tied()
    nn.init.normal_(model.norm.running_mean)
    return model


def meta_model(*, with_table: bool = True) -> Tied:
    with torch.device("meta"):
        model = Tied()
    if with_table:
        model.table = torch.linspace(0, 1, 8)
    return model


def tensors_of(model: nn.Module, without: str = "head.weight") -> dict[str, torch.Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items() if name != without}


def single(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path


def sharded(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    names = list(tensors)
    weight_map = {}
    for number, share in enumerate((names[::2], names[1::2])):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in share}, folder / file)
        weight_map |= dict.fromkeys(share, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return index


def source(form: str, folder: Path, tensors: dict[str, torch.Tensor]) -> Any:
    folder.mkdir()
    if form == "callable":
        return tensors.__getitem__
    path = sharded(folder, tensors) if "sharded" in form or form == "index" else None
    path = path or single(folder, tensors)
    return {"str": str(path)}.get(form, folder if "folder" in form else path)


def run(model: nn.Module, node_data: Path, **options: Any) -> dict[str, bytes]:
    """Plans over two nodes; the files of the plan."""
    node_data.mkdir(exist_ok=True)
    nodes = {
        str(i): {"IP": f"127.0.0.1:{8080 + i}", "benchmarks": {"ram": 8, "bandwidth": 20}}
        for i in range(2)
    }
    (node_data / "node_configs.json").write_text(json.dumps(nodes))
    plan = clusterize(model, EXAMPLE, node_data=node_data, num_clusters=1, **options)
    assert len(plan.stages) == 2
    paths = sorted(path for path in node_data.rglob("*") if path.is_file())
    return {path.relative_to(node_data).as_posix(): path.read_bytes() for path in paths}


FORMS = ("file", "str", "folder", "index", "sharded folder", "callable")


@pytest.mark.parametrize("form", FORMS)
def test_streamed_files_are_those_of_the_real_model(form: str, tmp_path: Path) -> None:
    weights = source(form, tmp_path / "weights", tensors_of(real_model()))
    streamed = run(meta_model(), tmp_path / "streamed", weights=weights)
    assert streamed == run(real_model(), tmp_path / "real")
    assert streamed == run(meta_model(), tmp_path / "again", weights=weights)


@pytest.mark.parametrize("without", ["embed.weight", "head.weight", ""])
def test_a_tied_tensor_may_come_under_any_of_its_names(without: str, tmp_path: Path) -> None:
    weights = single(tmp_path, tensors_of(real_model(), without))
    assert run(meta_model(), tmp_path / "a", weights=weights) == run(real_model(), tmp_path / "b")


@pytest.mark.parametrize("form", ["file", "callable"])
def test_tied_names_with_different_values_are_refused(form: str, tmp_path: Path) -> None:
    tensors = tensors_of(real_model(), "")
    tensors["head.weight"] += 1
    weights = source(form, tmp_path / "weights", tensors)
    with pytest.raises(ConfigError, match=r"different values for 'embed\.weight' and 'head"):
        run(meta_model(), tmp_path / "plan", weights=weights)
    assert [path.name for path in (tmp_path / "plan").iterdir()] == ["node_configs.json"]


def test_the_model_is_as_before(tmp_path: Path) -> None:
    model = meta_model()
    before = [id(t) for t in (*model.parameters(), *model.buffers())]
    weights = single(tmp_path, tensors_of(real_model()))
    run(model, tmp_path / "plan", weights=weights)
    assert [id(t) for t in (*model.parameters(), *model.buffers())] == before
    assert not model.table.is_meta
    with contextlib.suppress(ZeroDivisionError), wholly_on_meta(model):
        assert model.table.is_meta
        _ = 1 / 0
    assert not model.table.is_meta
    assert [id(t) for t in (*model.parameters(), *model.buffers())] == before
    assert model.head.weight is model.embed.weight


def test_a_model_without_values_needs_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'embed\.weight' of Tied is on the meta.*not given"):
        run(meta_model(), tmp_path)


def test_weights_replace_those_of_a_real_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Tied()
    weights = single(tmp_path, tensors_of(real_model()))
    with caplog.at_level(logging.INFO, "ravnest"):
        files = run(other, tmp_path / "a", weights=weights)
    assert files == run(real_model(), tmp_path / "b")
    assert "no self-test" in caplog.text


def _cut(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.__setitem__(name, tensors[name][1:].clone())


FAULTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing": (
        lambda t: (t.pop("mid.bias"), t.pop("embed.weight")),
        r"lacks 2 of the model's tensors: embed\.weight, mid\.bias; it has names like \['mid\.w",
    ),
    "shape": (_cut("mid.weight"), r"'mid\.weight' has shape \[7, 8\], the model's has \[8, 8\]"),
    "dtype": (
        lambda t: t.update({name: v.bfloat16() for name, v in t.items() if "mid" in name}),
        r"'mid\.weight' is bfloat16, the model's is float32; and 1 tensors more(?s:.)*\.to\(",
    ),
}


@pytest.mark.parametrize("form", ["file", "sharded folder", "callable"])
@pytest.mark.parametrize("fault", FAULTS)
def test_weights_that_do_not_fit_are_refused(fault: str, form: str, tmp_path: Path) -> None:
    change, message = FAULTS[fault]
    tensors = tensors_of(real_model())
    change(tensors)
    if form == "callable":  # it is asked for one tensor after another
        message = message.partition("; ")[0].replace("lacks 2", "lacks 1").partition(", mid")[0]
    weights = source(form, tmp_path / "weights", tensors)
    with pytest.raises(ConfigError, match=message):
        run(meta_model(), tmp_path / "plan", weights=weights)
    assert [path.name for path in (tmp_path / "plan").iterdir()] == ["node_configs.json"]


def test_further_tensors_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = tensors_of(real_model())
    tensors |= {"rotary.inv_freq": torch.ones(2), "adapter": torch.ones(1), "table": torch.ones(8)}
    run(meta_model(), tmp_path / "plan", weights=single(tmp_path, tensors))
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "has 2 tensors that the model has no place for" in record.getMessage()
    assert "adapter, rotary.inv_freq" in record.getMessage()


@pytest.mark.parametrize("form", ["file", "callable"])
def test_a_buffer_without_values_is_refused(form: str, tmp_path: Path) -> None:
    weights = source(form, tmp_path / "weights", tensors_of(real_model()))
    with pytest.raises(ConfigError, match="non-persistent buffer 'table' is on") as caught:
        run(meta_model(with_table=False), tmp_path / "plan", weights=weights)
    assert "model.get_submodule('').table = ..." in str(caught.value)


@pytest.mark.parametrize("form", ["file", "callable"])
def test_a_buffer_that_the_source_has_after_all_is_used(form: str, tmp_path: Path) -> None:
    real = real_model()
    weights = source(form, tmp_path / "weights", tensors_of(real) | {"table": real.table})
    files = run(meta_model(with_table=False), tmp_path / "plan", weights=weights)
    assert files == run(real, tmp_path / "real")


def test_bfloat16_is_streamed_as_it_is(tmp_path: Path) -> None:
    real = real_model().bfloat16()
    weights = single(tmp_path, tensors_of(real))
    model = meta_model(with_table=False).bfloat16()
    model.table = real.table
    streamed, whole = run(model, tmp_path / "a", weights=weights), run(real, tmp_path / "b")
    # The plans differ: torch saves other statistics of a batch norm on the meta device.
    stages = [name for name in whole if name.startswith("cluster_")]
    assert len(stages) == 4
    assert {name: streamed[name] for name in stages} == {name: whole[name] for name in stages}


def test_a_callable_must_return_tensors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights\('embed\.weight'\) returned a str"):
        run(meta_model(), tmp_path, weights=lambda name: name)
    with pytest.raises(ZeroDivisionError):
        run(meta_model(), tmp_path, weights=lambda name: 1 / 0)
    with pytest.raises(ConfigError, match="returned a tensor on the meta device"):
        run(meta_model(), tmp_path, weights=meta_model().state_dict().__getitem__)
    with pytest.raises(ConfigError, match=r"weights is of type dict(?s:.)*__getitem__"):
        run(meta_model(), tmp_path, weights={})


INDEXES = {
    "no JSON": "{",
    "no map": "{}",
    "a list": "[]",
    "no names": '{"weight_map": {"a": 1}}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("kind", INDEXES)
def test_a_damaged_index_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(INDEXES[kind])
    with pytest.raises(ConfigError, match=r"index\.json is no index of safetensors files"):
        run(meta_model(), tmp_path / "plan", weights=tmp_path)


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "model.bin", ""])
def test_an_index_names_files_beside_itself_only(file: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"embed.weight": file}}))
    with pytest.raises(ConfigError, match=r"the name of a \.safetensors file in the same"):
        run(meta_model(), tmp_path / "plan", weights=index)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    with pytest.raises(ConfigError, match=r"neither \*\.safetensors nor"):
        run(meta_model(), tmp_path / "plan", weights=weights)
    with pytest.raises(ConfigError, match="'nowhere' does not exist"):
        run(meta_model(), tmp_path / "plan", weights="nowhere")
    (weights / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"neither a \.safetensors file nor an index"):
        run(meta_model(), tmp_path / "plan", weights=weights / "pytorch_model.bin")
    (weights / "a.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match=r"a\.safetensors is no valid safetensors file"):
        run(meta_model(), tmp_path / "plan", weights=weights)
    (weights / "b.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"has 2 files \*\.safetensors, such as \['a\.saf"):
        run(meta_model(), tmp_path / "plan", weights=weights)


def test_an_index_and_its_files_must_agree(tmp_path: Path) -> None:
    index = sharded(tmp_path, tensors_of(real_model()))
    data = json.loads(index.read_text())
    data["weight_map"]["tail.gone"] = "model-00001-of-00002.safetensors"
    index.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"has no tensor 'tail\.gone', which .* says is there"):
        run(meta_model(), tmp_path / "plan", weights=index)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"1 of the 2 files .* are missing, such as model-00002"):
        run(meta_model(), tmp_path / "plan", weights=index)


def test_the_example_may_be_on_either_device() -> None:
    for device in ("cpu", "meta"):
        captured = capture_model(nn.Linear(8, 8, device="meta"), (torch.ones(1, 8, device=device),))
        assert [each.num_bytes for each in captured.costs.stored] == [256, 32]
