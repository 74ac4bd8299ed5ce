"""A stage on disk: `graph.json` (own format, no code) and `weights.safetensors`; strictly back."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ravnest.capture.dtypes import dtype_name, dtype_of
from ravnest.capture.graph_json import checked_program, graph_to_data
from ravnest.capture.program import StageProgram
from ravnest.capture.signature import InputSignature
from ravnest.capture.signature_json import signature_from_data, signature_to_data
from ravnest.capture.stages import StageGraphs
from ravnest.capture.state import StoredTensor
from ravnest.capture.strict_json import Field, read
from ravnest.errors import CaptureError, PlanFileError

SCHEMA_VERSION = 1
GRAPH_FILE = "graph.json"
WEIGHTS_FILE = "weights.safetensors"

_MAX_TENSORS = 100_000
_MAX_STAGES = 100_000


@dataclass(frozen=True, slots=True)
class LoadedStage:
    """A stage ready to run.

    Attributes:
        index: position in the cluster, 0 is the root.
        parameters: by original name, in the model's order; plain tensors that want no gradient yet.
        trainable: names of the parameters that get one.
        buffers: persistent buffers owned here, in the model's order.
        replicas: trainable parameters used here and owned by an earlier stage, in the model's
            order.
        replica_owners: index of the owning stage per replica, smaller than `index`.
        constants: non-persistent buffers, lifted constants, and read-only copies of others'
            frozen parameters and buffers.
        train: program of the train mode.
        eval: program of the eval mode.
        signature: on the root, what a call must look like.
    """

    index: int
    num_stages: int
    parameters: Mapping[str, torch.Tensor]
    trainable: frozenset[str]
    buffers: Mapping[str, torch.Tensor]
    replicas: Mapping[str, torch.Tensor]
    replica_owners: Mapping[str, int]
    constants: Mapping[str, torch.Tensor]
    train: StageProgram
    eval: StageProgram
    signature: InputSignature | None


@dataclass(frozen=True, slots=True)
class _Declared:
    """A tensor that graph.json says the weights file has."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    group: str
    trainable: bool = False
    owner: int = 0


def write_stage(
    stage: StageGraphs,
    directory: Path,
    values_of: Callable[[StoredTensor], torch.Tensor] = attrgetter("tensor"),
) -> None:
    """Writes a stage's two files; the same stage gives the same bytes.

    Args:
        stage: one of `split`'s.
        directory: made when it is not there; only the two files are written.
        values_of: gives the values of a tensor, in its dtype and shape; by default the model's own.
            All of a stage's are held until it is written.

    Raises:
        CaptureError: an operator, argument or tensor that a file cannot hold.
        OSError: the files cannot be written.
    """
    data = {
        "schema": SCHEMA_VERSION,
        "stage": stage.index,
        "num_stages": stage.num_stages,
        "parameters": [
            _tensor_to_data(each) | {"trainable": each.trainable}
            for each in stage.parameters.values()
        ],
        "buffers": [_tensor_to_data(each) for each in stage.buffers.values()],
        "replicas": [
            _tensor_to_data(each) | {"owner": stage.replica_owners[name]}
            for name, each in stage.replicas.items()
        ],
        "constants": [_tensor_to_data(each) for each in stage.constants.values()],
        "train": graph_to_data(stage.train),
        "eval": graph_to_data(stage.eval),
        "signature": None if stage.signature is None else signature_to_data(stage.signature),
    }
    text = json.dumps(data, sort_keys=True, allow_nan=False, separators=(",", ":"))
    groups = (stage.parameters, stage.buffers, stage.replicas, stage.constants)
    tensors = {
        name: _contents(name, values_of(each)) for group in groups for name, each in group.items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / GRAPH_FILE).write_bytes(text.encode("utf-8"))
    save_file(tensors, directory / WEIGHTS_FILE)


def load_stage(
    directory: Path, device: torch.device | str = "cpu", trusted: Collection[str] = ()
) -> LoadedStage:
    """Reads a stage back without trusting it: nothing in the files can run code.

    Both files are checked whole before a program is compiled.

    Args:
        directory: holds the two files of `write_stage`.
        device: where weights go and factories make their tensors.
        trusted: factories `package.module:function` that may be imported and called to build the
            submodules that stayed code; the only code a stage can name.

    Raises:
        PlanFileError: any fault, naming file and field.
    """
    device = torch.device(device)
    field = read(directory / GRAPH_FILE)
    if isinstance(field.value, dict) and "schema" in field.value:
        schema = field.value["schema"]
        if type(schema) is not int or schema != SCHEMA_VERSION:
            field["schema"].fail(f"expected {SCHEMA_VERSION}, got {str(schema)[:80]}")
    field.members(
        (
            *("schema", "stage", "num_stages", "parameters", "buffers", "replicas", "constants"),
            *("train", "eval", "signature"),
        )
    )
    num_stages = field["num_stages"].integer(low=1, high=_MAX_STAGES)
    index = field["stage"].integer(high=num_stages - 1)
    declared = {each.name: each for each in _declared(field, index)}
    signature = field["signature"]
    checked_signature = None if signature.value is None else signature_from_data(signature)
    shapes = {each.name: each.shape for each in declared.values()}
    train = checked_program(field["train"], shapes, device, trusted)
    evaluation = checked_program(field["eval"], shapes, device, trusted)
    tensors = _read_weights(directory / WEIGHTS_FILE, declared, device)
    return LoadedStage(
        index=index,
        num_stages=num_stages,
        parameters=_group(tensors, declared, "parameters"),
        trainable=frozenset(each.name for each in declared.values() if each.trainable),
        buffers=_group(tensors, declared, "buffers"),
        replicas=_group(tensors, declared, "replicas"),
        replica_owners={
            each.name: each.owner for each in declared.values() if each.group == "replicas"
        },
        constants=_group(tensors, declared, "constants"),
        train=train(),
        eval=evaluation(),
        signature=checked_signature,
    )


def _tensor_to_data(each: StoredTensor) -> dict[str, Any]:
    return {
        "name": each.name,
        "dtype": dtype_name(each.tensor.dtype),
        "shape": list(each.tensor.shape),
    }


def _contents(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's values in memory of their own, which safetensors needs."""
    tensor = tensor.detach()
    if tensor.is_meta:
        raise CaptureError(
            f"{name} is on the meta device and has no values to write",
            hint="load the model's weights before writing its stages",
        )
    if tensor.layout is not torch.strided:
        raise CaptureError(
            f"{name} is a {tensor.layout} tensor, only dense ones can be written",
            hint="call to_dense() on it before capturing",
        )
    own = tensor.cpu().contiguous().resolve_conj().resolve_neg()
    return own.clone() if own.untyped_storage().nbytes() != own.nbytes else own


_GROUPS = {
    "parameters": ("trainable",),
    "buffers": (),
    "replicas": ("owner",),
    "constants": (),
}
"""Groups of tensors in graph.json, and what each says of a tensor besides its form."""


def _declared(field: Field, index: int) -> Iterator[_Declared]:
    """The tensors of stage `index`; each name once, replicas owned by an earlier stage."""
    seen: set[str] = set()
    if index == 0 and field["replicas"].value:
        field["replicas"].fail("has tensors, but no stage comes before the first")
    for group, further in _GROUPS.items():
        for item in field[group].items(_MAX_TENSORS):
            item.members(("name", "dtype", "shape", *further))
            name = item["name"].text()
            if name in seen:
                item["name"].fail(f"tensor {name!r} is declared twice")
            seen.add(name)
            shape = tuple(size.integer() for size in item["shape"].items(64))
            dtype = dtype_of(item["dtype"])
            yield _Declared(
                name,
                dtype,
                shape,
                group,
                trainable=item["trainable"].flag() if "trainable" in further else False,
                owner=item["owner"].integer(high=index - 1) if "owner" in further else 0,
            )


def _read_weights(
    path: Path, declared: Mapping[str, _Declared], device: torch.device
) -> dict[str, torch.Tensor]:
    """The declared tensors, each in memory of its own; the file has these and no others."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            present = set(file.keys())
            if missing := sorted(declared.keys() - present):
                raise PlanFileError(f"{path}: tensors {missing[:5]} are missing")
            if extra := sorted(present - declared.keys()):
                raise PlanFileError(f"{path}: tensors {extra[:5]} are not declared in {GRAPH_FILE}")
            for each in declared.values():
                shape = tuple(file.get_slice(each.name).get_shape())
                if shape != each.shape:
                    raise PlanFileError(
                        f"{path}: tensor {each.name!r} has shape {list(shape)}, "
                        f"{GRAPH_FILE} says {list(each.shape)}"
                    )
                tensor = file.get_tensor(each.name)
                if tensor.dtype != each.dtype:
                    raise PlanFileError(
                        f"{path}: tensor {each.name!r} is {tensor.dtype}, "
                        f"{GRAPH_FILE} says {each.dtype}"
                    )
                tensors[each.name] = tensor.to(device, copy=True)
    except (OSError, SafetensorError) as error:
        raise PlanFileError(f"{path}: no valid safetensors file: {error}") from error
    return tensors


def _group(
    tensors: Mapping[str, torch.Tensor], declared: Mapping[str, _Declared], group: str
) -> dict[str, torch.Tensor]:
    return {name: tensors[name] for name, each in declared.items() if each.group == group}
