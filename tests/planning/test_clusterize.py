"""clusterize from end to end: a small CNN, its plan, its files."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ravnest.capture.stage_file import load_stage
from ravnest.errors import CaptureError, ConfigError, NotEnoughMemoryError, PlanningError
from ravnest.plan.files import load_node_plan, load_plan, verify_stage_files
from ravnest.plan.model import Plan
from ravnest.plan.parts import Replica
from ravnest.planning.clusterize import clusterize


class SmallCnn(nn.Module):
    """Convolutions with batch norm, a residual sum and a tied pair of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv2d_1 = nn.Conv2d(1, 8, 3)
        self.bn_1 = nn.BatchNorm2d(8)
        self.conv2d_2 = nn.Conv2d(8, 8, 3, padding=1)
        self.bn_2 = nn.BatchNorm2d(8)
        self.dense_1 = nn.Linear(8 * 36, 16)
        self.dense_2 = nn.Linear(16, 16)
        self.dense_3 = nn.Linear(16, 10)
        self.dense_2_again = nn.Linear(16, 16)
        self.dense_2_again.weight = self.dense_2.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn_1(self.conv2d_1(x)))
        x = torch.relu(x + self.bn_2(self.conv2d_2(x)))
        x = torch.relu(self.dense_1(x.flatten(1)))
        return self.dense_3(self.dense_2_again(torch.relu(self.dense_2(x))))


@pytest.fixture
def model() -> SmallCnn:
    torch.manual_seed(3)
    return SmallCnn()


@pytest.fixture
def example() -> tuple[torch.Tensor]:
    return (torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1)),)


def _configure(folder: Path, number: int, *, gigabytes: float = 8) -> Path:
    entries = {
        str(i): {
            "IP": f"0.0.0.0:{8080 + i}",
            "benchmarks": {"ram": gigabytes, "bandwidth": 20},
        }
        for i in range(number)
    }
    folder.mkdir(exist_ok=True)
    (folder / "node_configs.json").write_text(json.dumps(entries))
    return folder


def _files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _check_written(plan: Plan, folder: Path, model: nn.Module) -> None:
    """Every node can start from its own files, and each cluster holds the whole model once."""
    assert load_plan(folder) == plan
    expected = dict(model.state_dict())
    assert plan.state_names == tuple(expected)
    for cluster in plan.clusters:
        found: dict[str, torch.Tensor] = {}
        for node_id in cluster:
            node_plan = load_node_plan(folder, node_id)
            verify_stage_files(folder, node_plan)
            stage = plan.stage_of(node_id)
            loaded = load_stage(folder / f"cluster_{stage.cluster_id}/node_{node_id}")
            assert tuple(loaded.parameters) == stage.parameters
            assert tuple(loaded.buffers) == stage.buffers
            owners = {replica.name: cluster.index(replica.owner) for replica in stage.replicas}
            assert loaded.replica_owners == owners
            found |= {**loaded.parameters, **loaded.buffers}
        assert sorted((*found, *plan.aliases)) == sorted(expected)
        for name, tensor in found.items():
            torch.testing.assert_close(tensor.detach(), expected[name], rtol=0, atol=0)
    ringed = [name for ring in plan.rings for name in (*ring.parameters, *ring.buffers)]
    assert sorted((*ringed, *plan.aliases)) == sorted(expected)


@pytest.mark.parametrize(
    ("number", "num_clusters", "sizes"), [(3, 1, [3]), (6, 2, [3, 3]), (5, 2, [3, 2])]
)
def test_a_cnn_is_planned_twice_with_the_same_bytes(
    tmp_path: Path,
    model: SmallCnn,
    example: tuple[torch.Tensor],
    capsys: pytest.CaptureFixture[str],
    number: int,
    num_clusters: int,
    sizes: list[int],
) -> None:
    folders = [_configure(tmp_path / name, number) for name in ("one", "two")]
    plans = [
        clusterize(model, example, node_data=folder, num_clusters=num_clusters)
        for folder in folders
    ]
    assert capsys.readouterr().out == f"{plans[0]}\n{plans[1]}\n"
    assert [len(cluster) for cluster in plans[0].clusters] == sizes
    assert _files(folders[0]) == _files(folders[1])
    _check_written(plans[0], folders[0], model)
    again = clusterize(model, example, node_data=folders[0], num_clusters=num_clusters)
    assert again == plans[0]
    assert _files(folders[0]) == _files(folders[1])


def test_a_tied_pair_is_cut_apart(
    tmp_path: Path, example: tuple[torch.Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(64, 64) for _ in range(3))
            self.three.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.two(torch.relu(self.one(x.flatten(1)))))
            return self.three(x)

    model = Tied()
    folder = _configure(tmp_path / "node_data", 5)
    plan = clusterize(model, example, node_data=folder, num_clusters=2)
    _check_written(plan, folder, model)
    for cluster in plan.clusters:
        *others, leaf = (plan.stage_of(node_id) for node_id in cluster)
        assert leaf.replicas == (Replica("one.weight", cluster[0]),)
        assert not any(stage.replicas for stage in others)


def test_keyword_inputs_and_a_config_file_elsewhere(
    tmp_path: Path, model: SmallCnn, example: tuple[torch.Tensor]
) -> None:
    elsewhere = _configure(tmp_path / "elsewhere", 1) / "node_configs.json"
    plan = clusterize(
        model,
        example_kwargs={"x": example[0]},
        pass_data=True,
        node_data=tmp_path / "node_data",
        node_configs=elsewhere,
        schedule="async",
        optimizer_states=1,
    )
    assert plan.clusters == ((0,),)
    assert plan.stages[0].needed_bytes < 400_000_000
    _check_written(plan, tmp_path / "node_data", model)


def test_a_smaller_plan_replaces_a_larger_one(
    tmp_path: Path, model: SmallCnn, example: tuple[torch.Tensor]
) -> None:
    folder = _configure(tmp_path / "node_data", 3)
    clusterize(model, example, node_data=folder, num_clusters=1)
    _configure(folder, 1)
    plan = clusterize(model, example, node_data=folder)
    assert set(_files(folder)) == {
        "node_configs.json",
        "plan.json",
        "nodes/node_0.json",
        "cluster_0/node_0/graph.json",
        "cluster_0/node_0/weights.safetensors",
    }
    _check_written(plan, folder, model)


def test_too_little_memory_writes_nothing(
    tmp_path: Path, model: SmallCnn, example: tuple[torch.Tensor]
) -> None:
    folder = _configure(tmp_path / "node_data", 3)
    clusterize(model, example, node_data=folder, num_clusters=1)
    _configure(folder, 3, gigabytes=0.3)
    before = _files(folder)
    with pytest.raises(NotEnoughMemoryError, match=r"node 2: needs 370 MB, has 300 MB"):
        clusterize(model, example, node_data=folder)
    assert _files(folder) == before
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["cluster_0", "nodes"]


class Drawing(SmallCnn):
    """Its forward depends on a number that Python draws, which a captured graph has once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * random.random()


def test_a_failed_self_test_writes_nothing(tmp_path: Path, example: tuple[torch.Tensor]) -> None:
    folder = _configure(tmp_path / "node_data", 3)
    clusterize(SmallCnn(), example, node_data=folder, num_clusters=1)
    before = _files(folder)
    with pytest.raises(CaptureError, match=r"self-test failed, .* in 3 stages"):
        clusterize(Drawing(), example, node_data=folder, num_clusters=1)
    assert _files(folder) == before
    clusterize(Drawing(), example, node_data=folder, num_clusters=1, self_test=False)
    assert _files(folder) != before


def test_every_way_of_cutting_is_tested_once(
    tmp_path: Path,
    model: SmallCnn,
    example: tuple[torch.Tensor],
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = _configure(tmp_path / "node_data", 6)
    with caplog.at_level(logging.INFO, "ravnest.planning"):
        clusterize(model, example, node_data=folder, num_clusters=2)
        _configure(folder, 5)
        clusterize(model, example, node_data=folder, num_clusters=2)
    tests = [record.getMessage() for record in caplog.records]
    sizes = [text.split(" stages")[0].split()[-1] for text in tests if "equals the model" in text]
    assert sorted(sizes) == ["2", "3", "3"]


def test_more_clusters_than_nodes_writes_nothing(
    tmp_path: Path, model: SmallCnn, example: tuple[torch.Tensor]
) -> None:
    folder = _configure(tmp_path / "node_data", 2)
    with pytest.raises(PlanningError, match="num_clusters=3"):
        clusterize(model, example, node_data=folder, num_clusters=3)
    assert list(_files(folder)) == ["node_configs.json"]


def test_the_file_of_nodes_is_checked_before_the_model_is_touched(tmp_path: Path) -> None:
    class Untouchable(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("the model was run")

    with pytest.raises(ConfigError, match=r"node_configs\.json does not exist"):
        clusterize(Untouchable(), (torch.zeros(1),), node_data=tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": SmallCnn}, "model is of type type; expected a torch.nn.Module instance"),
        ({"model": "cnn"}, "model is of type str; expected"),
        ({"example_args": torch.zeros(1)}, r"of type Tensor; expected a tuple(?s:.)*\(x,\)"),
        ({"example_kwargs": [1]}, "example_kwargs is of type list; expected a dict"),
        ({"num_clusters": 0}, "num_clusters is 0; expected a whole number from 1 on"),
        ({"num_clusters": True}, "num_clusters is True; expected"),
        ({"num_clusters": 1.5}, r"num_clusters is 1\.5; expected"),
        ({"schedule": "gpipe"}, "schedule='gpipe' is unknown; expected one of '1f1b', 'async'"),
        ({"schedule": 1}, "schedule=1 is unknown; expected one of"),
        ({"self_test": "no"}, "self_test is 'no'; expected True or False"),
        ({"optimizer_states": -1}, "optimizer_states is -1; expected a whole number from 0"),
        ({"optimizer_states": "adam"}, "optimizer_states is 'adam'; expected"),
    ],
)
def test_options_are_checked_first(
    tmp_path: Path, model: SmallCnn, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        clusterize(**{"model": model, "node_data": tmp_path, **options})
    assert not list(tmp_path.iterdir())
