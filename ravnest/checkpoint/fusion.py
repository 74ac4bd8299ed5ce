"""Joins the trained sub-models of one cluster into a state dict of the original model."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import save_file

from ravnest.checkpoint.submodels import load_submodel, submodel_path
from ravnest.errors import ConfigError, PlanFileError
from ravnest.plan.files import load_plan


def model_fusion(
    cluster_id: int = 0,
    *,
    node_data: str | Path = "node_data",
    trained: str | Path = "trained",
) -> dict[str, torch.Tensor]:
    """Joins the saved sub-models of a cluster and writes them under `trained`.

    Writes `trained_state_dict.pt` (for `torch.load(..., weights_only=True)`) and
    `trained_state_dict.safetensors`.

    Args:
        cluster_id: which cluster's weights; after averaging all clusters hold the same.
        node_data: folder of the plan.
        trained: folder the nodes saved to.

    Returns:
        Every key of the original model's state dict, in its order, tied names included, so that
        `original.load_state_dict(state_dict, strict=True)` works. Tensors are on the CPU.

    Raises:
        ConfigError: the plan has no such cluster.
        PlanFileError: a sub-model is missing, damaged, incomplete or of another plan.
    """
    plan = load_plan(Path(node_data))
    if cluster_id not in range(len(plan.clusters)):
        raise ConfigError(
            f"cluster_id={cluster_id!r} is not in the plan; "
            f"expected one of 0 .. {len(plan.clusters) - 1}"
        )
    folder = Path(trained)
    merged: dict[str, torch.Tensor] = {}
    for node_id in plan.clusters[cluster_id]:
        merged |= load_submodel(submodel_path(folder, cluster_id, node_id), plan.sha256)
    merged |= {alias: merged[name] for alias, name in plan.aliases.items() if name in merged}
    missing = [name for name in plan.state_names if name not in merged]
    if missing:
        raise PlanFileError(f"the sub-models of cluster {cluster_id} lack {', '.join(missing)}")
    state_dict = {name: merged[name] for name in plan.state_names}
    _write(folder, state_dict)
    return state_dict


def _write(folder: Path, state_dict: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pickled = folder / "trained_state_dict.pt"
    plain = folder / "trained_state_dict.safetensors"
    partials = [path.with_name(f".{path.name}.{os.getpid()}.partial") for path in (pickled, plain)]
    try:
        torch.save(state_dict, partials[0])
        # safetensors refuses tensors that share memory, as tied ones do
        save_file({name: tensor.clone() for name, tensor in state_dict.items()}, partials[1])
        partials[0].replace(pickled)
        partials[1].replace(plain)
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)
