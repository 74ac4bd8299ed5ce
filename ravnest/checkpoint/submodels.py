"""The trained sub-model of one node as a file: trained/cluster_<c>/node_<id>.safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ravnest.errors import HashMismatchError, PlanFileError
from ravnest.plan.identity import node_name

PLAN_HASH_KEY = "plan_sha256"


def submodel_path(folder: Path, cluster_id: int, node_id: int) -> Path:
    """Where a node's trained sub-model is saved below `folder`."""
    return folder / f"cluster_{cluster_id}" / f"{node_name(node_id)}.safetensors"


def save_submodel(path: Path, tensors: Mapping[str, torch.Tensor], plan_sha256: str) -> None:
    """Writes a sub-model atomically: the file before it stays whole until the new one is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(dict(tensors), partial, metadata={PLAN_HASH_KEY: plan_sha256})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_submodel(path: Path, plan_sha256: str) -> dict[str, torch.Tensor]:
    """Reads a sub-model that was trained under a plan.

    Raises:
        PlanFileError: the file is missing or damaged.
        HashMismatchError: it was saved under another plan.
    """
    if not path.exists():
        raise PlanFileError(
            f"{path} is missing: that node has not saved its trained sub-model here",
            hint="train with Trainer(save=True) or call node.trigger_save_submodel(), and copy the "
            "file from the machine of that node",
        )
    try:
        with safe_open(path, framework="pt") as file:
            saved_under = (file.metadata() or {}).get(PLAN_HASH_KEY)
            if saved_under != plan_sha256:
                raise HashMismatchError(
                    f"{path} was saved under plan {saved_under}, expected plan {plan_sha256}",
                    hint="fuse with the plan it was trained under, or train again under this one",
                )
            return {name: file.get_tensor(name) for name in sorted(file.keys())}
    except SafetensorError as error:
        raise PlanFileError(f"{path} is damaged: {error}") from error
