"""Where the weights of a model without any come from: safetensors files, or a callable.

Knows names, dtypes and shapes; knows no graph and no stage. Files are opened for one tensor at a
time and read through memory maps, so that nothing is resident before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from ravnest.errors import ConfigError

Weights = str | Path | Callable[[str], torch.Tensor]

_SUFFIX = ".safetensors"
_INDEX_SUFFIX = ".safetensors.index.json"
_DTYPES = {
    **{"BOOL": torch.bool, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32},
    **{"F64": torch.float64, "C64": torch.complex64},
    **{"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
    **{f"I{bits}": getattr(torch, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"U{bits}": getattr(torch, f"uint{bits}") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What is known of a tensor before it is read.

    Attributes:
        dtype: as torch prints it without its module, like `bfloat16`.
    """

    dtype: str
    shape: tuple[int, ...]


class WeightSource(Protocol):
    """Gives tensors by name."""

    @property
    def headers(self) -> Mapping[str, TensorHeader] | None:
        """Every tensor there is, or None when that shows only on asking."""

    def read(self, name: str) -> torch.Tensor | None:
        """One tensor, or None when there is none of that name."""

    def __str__(self) -> str:
        """How people name the source."""


def open_weights(weights: Weights) -> WeightSource:
    """The source that the argument `weights` of clusterize stands for; reads headers only.

    Args:
        weights: a `.safetensors` file; an index of several (`*.safetensors.index.json`, as model
            hubs publish it); a folder with either; or `f(name)` that returns a tensor, and
            raises KeyError for a name it does not have.

    Raises:
        ConfigError: there is no such file, or it is damaged.
    """
    if isinstance(weights, (str, Path)):
        return _FileWeights(Path(weights))
    if not callable(weights):
        raise ConfigError(
            f"weights is of type {type(weights).__name__}; expected a path or a callable f(name)",
            hint="for a state dict, pass weights=state_dict.__getitem__",
        )
    return _CallableWeights(weights)


class _CallableWeights:
    """Tensors from a function of the user's."""

    headers = None

    def __init__(self, function: Callable[[str], torch.Tensor]) -> None:
        self._function = function

    def read(self, name: str) -> torch.Tensor | None:
        try:
            tensor: Any = self._function(name)
        except KeyError:
            return None
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(
                f"weights({name!r}) returned a {type(tensor).__name__}; expected a torch.Tensor",
                hint="raise KeyError for a name that does not exist",
            )
        if tensor.is_meta:
            raise ConfigError(
                f"weights({name!r}) returned a tensor on the meta device, which has no values",
                hint="return a tensor on the CPU",
            )
        return tensor

    def __str__(self) -> str:
        return "the callable given as weights"


class _FileWeights:
    """Tensors of one or several safetensors files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._files: dict[str, Path] = {}
        self.headers: dict[str, TensorHeader] = {}
        claimed = _read_index(file) if (file := _locate(path)).suffix == ".json" else {file: None}
        for file, names in claimed.items():
            found = _read_headers(file)
            if missing := sorted((names or set()) - found.keys()):
                raise ConfigError(
                    f"{file} has no tensor {missing[0]!r}, which {_locate(path)} says is there",
                    hint="download the files again; they are not of one version",
                )
            self.headers |= found
            self._files |= dict.fromkeys(found, file)

    def read(self, name: str) -> torch.Tensor | None:
        if name not in self._files:
            return None
        try:
            with safe_open(self._files[name], framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{self._files[name]}: cannot read {name!r}: {error}") from error
        return tensor

    def __str__(self) -> str:
        return str(self._path)


def _locate(path: Path) -> Path:
    """The safetensors file or index that a path means."""
    if not path.exists():
        raise ConfigError(f"weights={str(path)!r} does not exist")
    if path.is_file():
        if path.name.endswith((_SUFFIX, ".json")):
            return path
        raise ConfigError(
            f"weights={str(path)!r} is neither a {_SUFFIX} file nor an index of such files (.json)",
            hint="save the weights with safetensors.torch.save_file, or pass a callable f(name)",
        )
    for suffix in (_INDEX_SUFFIX, _SUFFIX):
        found = sorted(each for each in path.iterdir() if each.name.endswith(suffix))
        preferred = [each for each in found if each.name == f"model{suffix}"]
        if len(found) == 1 or preferred:
            return (preferred or found)[0]
        if found:
            names = [each.name for each in found[:5]]
            raise ConfigError(
                f"the folder {path} has {len(found)} files *{suffix}, such as {names}; "
                f"expected one, or model{suffix}",
                hint="name the file to use: weights='folder/name'",
            )
    raise ConfigError(
        f"the folder {path} has neither *{_SUFFIX} nor *{_INDEX_SUFFIX}",
        hint="weights saved with torch.save must be converted to safetensors first",
    )


def _read_index(path: Path) -> dict[Path, set[str] | None]:
    """Files that an index lists, in its order, and the tensors each is said to have."""
    try:
        weight_map = json.loads(path.read_bytes())["weight_map"]
        pairs = [(name, file) for name, file in weight_map.items() if isinstance(file, str)]
        is_sound = len(pairs) == len(weight_map)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_sound, pairs = False, []
    if not is_sound:
        raise ConfigError(
            f"{path} is no index of safetensors files; expected a JSON object with "
            '"weight_map": {tensor name: file name}'
        )
    claimed: dict[Path, set[str] | None] = {}
    for name, file in pairs:
        if Path(file).name != file or not file.endswith(_SUFFIX):
            raise ConfigError(
                f"{path} puts the tensor {name!r} into {file!r}; "
                f"expected the name of a {_SUFFIX} file in the same folder"
            )
        names = claimed.setdefault(path.with_name(file), set())
        assert names is not None
        names.add(name)
    if absent := [file.name for file in claimed if not file.is_file()]:
        raise ConfigError(
            f"{len(absent)} of the {len(claimed)} files that {path} lists are missing, "
            f"such as {absent[0]}",
            hint="download them into the same folder",
        )
    return claimed


def _read_headers(path: Path) -> dict[str, TensorHeader]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: _header(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} is no valid safetensors file: {error}") from error


def _header(tensor: Any) -> TensorHeader:
    name = tensor.get_dtype()
    dtype = str(_DTYPES[name]).removeprefix("torch.") if name in _DTYPES else name
    return TensorHeader(dtype, tuple(tensor.get_shape()))
