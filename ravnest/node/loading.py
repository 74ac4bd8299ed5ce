"""From files to a stage: the node's plan, its graph and weights, checked against their hashes."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from ravnest.capture.stage_file import LoadedStage, load_stage
from ravnest.errors import ConfigError, PlanFileError
from ravnest.plan.codec import RUN_AGAIN
from ravnest.plan.files import load_node_plan, verify_stage_files
from ravnest.plan.model import NodePlan
from ravnest.stage.state import StageState

_NAME = re.compile(r"node_(0|[1-9][0-9]*)", re.ASCII)


def parse_node_name(name: object) -> int:
    """The id in `node_<id>`; ConfigError for any other name."""
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise ConfigError(
            f"name={name!r} is no node name; expected node_<id>, such as 'node_0'",
            hint="the id is the node's key in node_configs.json",
        )
    return int(match.group(1))


def load_node(
    node_data: Path,
    node_id: int,
    trusted: Collection[str] = (),
    device: torch.device | str = "cpu",
) -> tuple[NodePlan, LoadedStage]:
    """Reads what one node needs and nothing else.

    Args:
        node_data: folder that clusterize wrote.
        node_id: whose stage.
        trusted: factories of submodules that stayed code, which may be imported and called.
        device: where the stage computes.

    Raises:
        PlanFileError: the node is not in the plan, or a file is missing or damaged.
        HashMismatchError: a file was changed after clusterize wrote it.
    """
    plan = load_node_plan(node_data, node_id)
    verify_stage_files(node_data, plan)
    folder = node_data / Path(plan.files[0].path).parent
    stage = load_stage(folder, device, trusted)
    planned = {replica.name: plan.cluster_nodes.index(replica.owner) for replica in plan.replicas}
    if planned != stage.replica_owners:
        raise PlanFileError(
            f"{folder} has replicas {dict(stage.replica_owners)} (owning stage by name), "
            f"the plan of node {node_id} says {planned}",
            hint=RUN_AGAIN,
        )
    return plan, stage


def initial_state(stage: LoadedStage, model: Any) -> StageState:
    """The stage's tensors, from its file or from a model that the user passed.

    Args:
        model: None, or a module or state dict with (at least) this stage's names, whose
            values replace those of the file. Replicas get their owner's values when training or
            evaluation begins.

    Raises:
        ConfigError: the model lacks a name of this stage, or has it in another shape.
    """
    parameters, buffers = dict(stage.parameters), dict(stage.buffers)
    constants = dict(stage.constants)
    if model is not None:
        given = model.state_dict() if isinstance(model, torch.nn.Module) else model
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"model is a {type(model).__name__}, expected a torch.nn.Module or a state dict",
                hint="leave it out to train from the weights that clusterize saved",
            )
        _override(parameters, given)
        _override(buffers, given)
        copies = {name: tensor for name, tensor in constants.items() if name in given}
        _override(copies, given)
        constants |= copies
    return StageState(parameters, stage.trainable, buffers, constants, stage.replicas)


def _override(tensors: dict[str, torch.Tensor], given: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if name not in given:
            raise ConfigError(f"the model passed to Node has no {name!r}, which this stage holds")
        if given[name].shape != tensor.shape:
            raise ConfigError(
                f"the model passed to Node has {name!r} with shape {tuple(given[name].shape)}, "
                f"the plan with {tuple(tensor.shape)}",
                hint="run clusterize again for this model",
            )
        tensors[name] = given[name].detach().clone().to(tensor.dtype)
