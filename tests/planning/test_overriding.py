"""Calls of clusterize taken over, nodes changed, and dry runs that leave no trace."""

from __future__ import annotations

import dataclasses
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ravnest.errors import ConfigError
from ravnest.plan.files import load_plan
from ravnest.plan.model import Plan
from ravnest.planning.clusterize import clusterize
from ravnest.planning.overriding import changing_nodes, taking_calls

NodeConfigs = Callable[..., Path]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


EXAMPLE = (torch.zeros(4, 8),)


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_a_dry_run_is_the_plan_without_its_files(
    tmp_path: Path,
    node_configs: NodeConfigs,
    model: nn.Module,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = node_configs(tmp_path, 2)
    dry = clusterize(model, EXAMPLE, node_data=folder, num_clusters=1, dry_run=True)
    assert capsys.readouterr().out == f"{dry}\n"
    assert _files(folder) == ["node_configs.json"]
    real = clusterize(model, EXAMPLE, node_data=folder, num_clusters=1)
    stages = tuple(dataclasses.replace(stage, files=()) for stage in real.stages)
    assert dataclasses.replace(real, stages=stages, sha256="") == dry
    assert str(real) == str(dry)


def test_a_dry_run_leaves_the_plan_that_is_there(
    tmp_path: Path, node_configs: NodeConfigs, model: nn.Module
) -> None:
    folder = node_configs(tmp_path, 2)
    before = clusterize(model, EXAMPLE, node_data=folder, num_clusters=1)
    clusterize(model, EXAMPLE, node_data=folder, num_clusters=2, dry_run=True)
    assert load_plan(folder) == before


def test_dry_run_is_true_or_false(
    tmp_path: Path, node_configs: NodeConfigs, model: nn.Module
) -> None:
    folder = node_configs(tmp_path, 1)
    with pytest.raises(ConfigError, match="dry_run is 'yes'; expected True or False"):
        clusterize(model, EXAMPLE, node_data=folder, dry_run="yes")  # type: ignore[arg-type]


def test_a_call_is_taken_with_its_arguments_by_name(
    tmp_path: Path,
    node_configs: NodeConfigs,
    model: nn.Module,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = node_configs(tmp_path, 1)
    taken: list[dict[str, Any]] = []

    def take(function: Callable[..., Plan], arguments: dict[str, Any]) -> Plan:
        taken.append(arguments)
        return function(**arguments, dry_run=True)

    with taking_calls(take):
        plan = clusterize(model, EXAMPLE, node_data=folder)
    assert taken == [{"model": model, "example_args": EXAMPLE, "node_data": folder}]
    assert isinstance(plan, Plan)
    assert capsys.readouterr().out == ""
    assert _files(folder) == ["node_configs.json"]
    clusterize(model, EXAMPLE, node_data=folder, dry_run=True)
    assert len(taken) == 1


def test_calls_are_taken_in_their_own_context_only(model: nn.Module, tmp_path: Path) -> None:
    def take(function: Callable[..., Plan], arguments: dict[str, Any]) -> Plan:
        raise AssertionError("taken in another thread")

    found: list[BaseException] = []

    def elsewhere() -> None:
        try:
            clusterize(model, EXAMPLE, node_data=tmp_path)
        except ConfigError as error:
            found.append(error)

    with taking_calls(take):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert len(found) == 1, "the call of the other thread ran as it would have"


def test_plans_are_made_for_the_changed_nodes(
    tmp_path: Path, node_configs: NodeConfigs, model: nn.Module
) -> None:
    folder = node_configs(tmp_path, 3)
    with changing_nodes(lambda nodes: tuple(nodes[:2])):
        plan = clusterize(model, EXAMPLE, node_data=folder, dry_run=True)
    assert [node.node_id for node in plan.nodes] == [0, 1]
    plan = clusterize(model, EXAMPLE, node_data=folder, dry_run=True)
    assert [node.node_id for node in plan.nodes] == [0, 1, 2]


def test_clusterize_keeps_its_signature() -> None:
    parameters = inspect.signature(clusterize).parameters
    assert list(parameters)[:4] == ["model", "example_args", "example_kwargs", "pass_data"]
    assert parameters["dry_run"].default is False


def test_a_dry_run_needs_no_weights(tmp_path: Path, node_configs: NodeConfigs) -> None:
    folder = node_configs(tmp_path, 2)
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    plan = clusterize(model, EXAMPLE, node_data=folder, num_clusters=1, dry_run=True)
    assert len(plan.stages) == 2
    with pytest.raises(ConfigError, match="weights is not given"):
        clusterize(model, EXAMPLE, node_data=folder, num_clusters=1)
