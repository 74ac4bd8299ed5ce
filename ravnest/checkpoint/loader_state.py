"""The state of a data loader as a file: trained/cluster_<c>/node_<id>.loader.safetensors.

Loaders that can go on where they stopped have `state_dict` and `load_state_dict` (the protocol of
torchdata's StatefulDataLoader). A state is nested plain data: its tensors, arrays and bytes are the
file's tensors, the rest is JSON in its header. Nothing in such a file is run when it is read.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ravnest.errors import ConfigError, PlanFileError
from ravnest.plan.identity import node_name
from ravnest.plan.structure import flatten, unflatten

_KEY = "loader_state"


def loader_state_path(folder: Path, cluster_id: int, node_id: int) -> Path:
    """Where the state of a root's loader is saved below `folder`."""
    return folder / f"cluster_{cluster_id}" / f"{node_name(node_id)}.loader.safetensors"


def save_loader_state(path: Path, state: Any, *, epoch: int) -> None:
    """Writes a state atomically.

    Args:
        state: what the loader's `state_dict` returned.
        epoch: of the run, in which it was asked for.

    Raises:
        ConfigError: there is something in it that is no plain data.
    """
    leaves, structure = flatten(state)
    tensors: dict[str, torch.Tensor] = {}
    plain: list[Any] = []
    for index, leaf in enumerate(leaves):
        plain.append(_packed(leaf, str(index), tensors))
    try:
        header = json.dumps({"epoch": epoch, "structure": structure, "leaves": plain})
        unflatten(json.loads(header)["structure"], leaves)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the loader's state has a key that is no plain data: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, metadata={_KEY: header})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_loader_state(path: Path) -> tuple[Any, int]:
    """A state for the loader's `load_state_dict`, and the epoch it was saved in.

    Raises:
        PlanFileError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
        leaves = [_unpacked(leaf, tensors) for leaf in header["leaves"]]
        return unflatten(header["structure"], leaves), int(header["epoch"])
    except FileNotFoundError:
        raise PlanFileError(
            f"{path} is missing: no loader that can be resumed was saved here",
            hint="train with Trainer(save=True) and a loader that has state_dict",
        ) from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise PlanFileError(f"{path} is damaged: {error}") from error


def _packed(leaf: Any, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """A leaf as JSON; what is large goes to `tensors`."""
    if leaf is None or isinstance(leaf, bool | int | float | str):
        return {"value": leaf}
    if isinstance(leaf, torch.Tensor):
        tensors[name] = leaf.detach().cpu().clone().contiguous()
        return {"tensor": name}
    if isinstance(leaf, bytes):
        tensors[name] = torch.tensor(list(leaf), dtype=torch.uint8)
        return {"bytes": name}
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "biuf":
        tensors[name] = torch.from_numpy(np.ascontiguousarray(leaf)).reshape(leaf.shape).clone()
        return {"array": name}
    raise ConfigError(
        f"the loader's state has a {type(leaf).__name__}, which is no plain data; expected nested "
        "dicts, lists and tuples of numbers, strings, bytes, arrays and tensors"
    )


def _unpacked(leaf: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    ((kind, value),) = leaf.items()
    if kind == "value":
        return value
    tensor = tensors[value]
    if kind == "bytes":
        return bytes(tensor.tolist())
    return tensor.numpy() if kind == "array" else tensor
