"""Impossible arguments of Node and Trainer are refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import make_plan, run_nodes

from ravnest import Trainer
from ravnest.errors import ConfigError

MODEL = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"optimizer": "adam"}, "optimizer='adam' cannot be called"),
        ({"criterion": torch.ones(())}, "criterion=tensor.* cannot be called"),
        ({"update_frequency": 0}, "update_frequency=0 is not possible; expected an integer"),
        ({"update_frequency": True}, "update_frequency=True is not possible"),
        ({"reduce_factor": 1.5}, "reduce_factor=1.5 is not possible"),
        ({"schedule": "gpipe"}, "schedule='gpipe' is unknown; expected one of '1f1b', 'async'"),
        ({"compression": "int3"}, "compression='int3' is unknown; expected one of False, True"),
        ({"compression": 1}, "compression=1 is unknown"),
        ({"labels": 5}, "labels is a int, expected a DataLoader"),
        ({"timeout_s": -1}, "timeout_s=-1 is not possible"),
        ({"clip_grad_norm": 0}, "clip_grad_norm=0 is not possible; expected a number above 0"),
        ({"clip_grad_norm": float("inf")}, "clip_grad_norm=inf is not possible"),
        ({"clip_grad_norm": float("nan")}, "clip_grad_norm=nan is not possible"),
        ({"clip_grad_norm": 1.0, "clip_norm_type": "inf"}, "clip_norm_type='inf' is not possible"),
        ({"speed": 2}, "Node has no option 'speed'; it has"),
        ({"model": 3}, "model is a int, expected a torch.nn.Module or a state dict"),
        ({"model": {"0.weight": torch.ones(4, 4)}}, "the model passed to Node has no '0.bias'"),
        ({"model": torch.nn.Sequential(torch.nn.Linear(3, 3))}, r"with shape \(3, 3\)"),
    ],
    ids=str,
)
def test_node_names_the_argument(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    run = make_plan(tmp_path, MODEL, (torch.rand(2, 4),), nodes=1)
    run_nodes(run, lambda node: None, arguments=arguments)
    with pytest.raises(ConfigError, match=words):
        raise run.errors[0]


def test_settings_must_agree_over_a_cluster(tmp_path: Path) -> None:
    """Every node runs the same script; one that does not is named, with both values."""
    run = make_plan(tmp_path, MODEL, (torch.rand(2, 4),), nodes=2)
    loader = [(torch.rand(2, 4), torch.tensor([0, 1]))]

    def script(node: Any) -> None:
        if node.node_type == "leaf":
            node._parts.service._settings = type(node._parts.service._settings)(
                node._parts.service._settings.schedule, 7, None, False
            )
        Trainer(node, train_loader=loader).train()

    run_nodes(run, script, criterion=lambda p, t: p.sum())
    leaf = run.plan.clusters[0][1]
    assert "update_frequency=7" in str(run.errors[leaf])
    assert all("update_frequency=7" in str(error) for error in run.errors.values())
    assert len(run.errors) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epochs": 0}, "epochs=0 is not possible"),
        ({"val_freq": 1.0}, "val_freq=1.0 is not possible"),
        ({"metric": "f1"}, "metric='f1' cannot be called"),
    ],
    ids=str,
)
def test_trainer_names_the_argument(arguments: dict[str, Any], words: str, tmp_path: Path) -> None:
    run = make_plan(tmp_path, MODEL, (torch.rand(2, 4),), nodes=1)
    run_nodes(run, lambda node: Trainer(node, **arguments))
    with pytest.raises(ConfigError, match=words):
        raise run.errors[0]


def test_a_missing_loader_is_named(tmp_path: Path) -> None:
    run = make_plan(tmp_path, MODEL, (torch.rand(2, 4),), nodes=1)
    run_nodes(run, lambda node: Trainer(node).train())
    with pytest.raises(ConfigError, match="the trainer has no train_loader"):
        raise run.errors[0]
