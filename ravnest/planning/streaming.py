"""A model without weights (on the meta device), captured, and given its weights stage by stage.

Parameters and persistent buffers come from the source. Non-persistent buffers are in no published
file: they come from the model, which may have real ones beside meta parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from ravnest.capture.exporting import CapturedModel
from ravnest.capture.state import StateInventory, StoredTensor
from ravnest.errors import ConfigError
from ravnest.planning.weights import TensorHeader, Weights, WeightSource, open_weights

_log = logging.getLogger(__name__)

_NUM_NAMED = 5  # names that a message lists


def weight_source(model: nn.Module, weights: Weights | None) -> WeightSource | None:
    """The source that clusterize's argument names; None when the model has its values itself.

    Raises:
        ConfigError: the model has none and there is no source, or the source cannot be opened.
    """
    if weights is not None:
        return open_weights(weights)
    if (name := tensor_without_values(model)) is not None:
        raise ConfigError(
            f"{name!r} of {type(model).__name__} is on the meta device, and weights is not given",
            hint="pass weights='folder' with its safetensors files, or a function of the name",
        )
    return None


def tensor_without_values(model: nn.Module) -> str | None:
    """The first parameter or buffer that is on the meta device, or None."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return next((name for name, tensor in tensors if tensor.is_meta), None)


@contextmanager
def wholly_on_meta(model: nn.Module) -> Iterator[None]:
    """Puts the rest of a model that is partly on the meta device there as well; undone at the end.

    An operator cannot mix a real buffer with a meta parameter, and capturing needs no values.
    """
    replaced: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
    stand_ins: dict[int, torch.Tensor] = {}
    try:
        if tensor_without_values(model) is not None:
            for module in model.modules():
                for tensors in (module._parameters, module._buffers):
                    for name, tensor in tensors.items():
                        if tensor is not None and not tensor.is_meta:
                            replaced.append((tensors, name, tensor))  # type: ignore[arg-type]
        for tensors, name, tensor in replaced:
            tensors[name] = stand_ins.setdefault(id(tensor), _without_values(tensor))
        yield
    finally:
        for tensors, name, tensor in replaced:
            tensors[name] = tensor


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    empty = tensor.detach().to("meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


class StreamedWeights:
    """The tensors of a captured model, read from a source when a stage is written.

    Args:
        captured: its stored tensors say which names, dtypes and shapes are wanted.
        model: has the non-persistent buffers.
        source: has everything else, a tied tensor under any of its names.

    Raises:
        ConfigError: the source lacks a name or has it in another dtype or shape, or a
            non-persistent buffer has values nowhere. Of a callable that shows on reading.
    """

    def __init__(self, captured: CapturedModel, model: nn.Module, source: WeightSource) -> None:
        self._source = source
        self._names = _names_of(captured.state)
        self._kept = {
            name: buffer
            for name, buffer in model.named_buffers(remove_duplicate=False)
            if not buffer.is_meta
        }
        if source.headers is not None:
            self._check(captured.state, source.headers)
            self._refuse_lost(captured, source.headers)

    def read(self, wanted: StoredTensor) -> torch.Tensor:
        """The values of one tensor, in its dtype and shape."""
        if not wanted.persistent:
            if not wanted.tensor.is_meta:
                return wanted.tensor
            if wanted.name in self._kept:
                return self._kept[wanted.name]
        names = self._names.get(wanted.name, (wanted.name,))
        found = [(name, t) for name in names if (t := self._source.read(name)) is not None]
        if not found:
            raise self._missing([wanted.name]) if wanted.persistent else _lost(wanted.name)
        for name, tensor in found:
            header = TensorHeader(_dtype_name(tensor.dtype), tuple(tensor.shape))
            if problem := _mismatch(name, wanted, header):
                raise self._mismatched([problem], wanted)
        self._refuse_untied(found)
        return found[0][1]

    def _check(self, state: StateInventory, headers: Mapping[str, TensorHeader]) -> None:
        missing, problems, of = [], [], None
        for wanted in state.stored.values():
            found = [name for name in self._names[wanted.name] if name in headers]
            missing += [] if found else [wanted.name]
            for name in found:
                if problem := _mismatch(name, wanted, headers[name]):
                    problems.append(problem)
                    of = of or wanted
        if missing:
            raise self._missing(missing)
        if of is not None:
            raise self._mismatched(problems, of)
        known = {name for names in self._names.values() for name in names} | state.constants.keys()
        if extra := sorted(headers.keys() - known):
            _log.warning(
                "%s has %d tensors that the model has no place for, such as %s; they are not used",
                *(self._source, len(extra), ", ".join(extra[:_NUM_NAMED])),
            )

    def _refuse_lost(self, captured: CapturedModel, headers: Mapping[str, TensorHeader]) -> None:
        """Refuses a constant that a graph uses and that has values nowhere."""
        used = {
            str(node.target)
            for mode in (captured.train, captured.eval)
            for node in mode.graph.nodes
            if node.op == "get_attr"
        }
        for name, each in captured.state.constants.items():
            has_values = not each.tensor.is_meta or name in self._kept or name in headers
            if name in used and not has_values:
                raise _lost(name)

    def _missing(self, names: Sequence[str]) -> ConfigError:
        headers = self._source.headers
        there = f"; it has names like {sorted(headers)[:_NUM_NAMED]}" if headers else ""
        return ConfigError(
            f"{self._source} lacks {len(names)} of the model's tensors: "
            f"{', '.join(names[:_NUM_NAMED])}{', ...' if len(names) > _NUM_NAMED else ''}{there}",
            hint="where only a prefix differs, pass weights=lambda name: ... that looks it up",
        )

    def _mismatched(self, problems: Sequence[str], first: StoredTensor) -> ConfigError:
        more = f"; and {len(problems) - 1} tensors more" if len(problems) > 1 else ""
        if "shape" in problems[0]:
            hint = "build the model with the configuration the weights were saved with"
        else:
            hint = (
                "convert the model with model.to(dtype) before clusterize, or the weights, "
                f"with weights=lambda name: load(name).to(torch.{_dtype_name(first.tensor.dtype)})"
            )
        return ConfigError(f"{self._source}: {problems[0]}{more}", hint=hint)

    def _refuse_untied(self, found: Sequence[tuple[str, torch.Tensor]]) -> None:
        (first, tensor), *others = found
        for name, other in others:
            if not torch.equal(tensor.cpu(), other.cpu()):
                raise ConfigError(
                    f"{self._source} has different values for {first!r} and {name!r}, which are "
                    "one tensor in the model",
                    hint="build the model without tying them, or leave one out of the weights",
                )


def _names_of(state: StateInventory) -> dict[str, tuple[str, ...]]:
    """Per stored tensor the names it may come under, its own first."""
    names: dict[str, tuple[str, ...]] = {name: (name,) for name in state.stored}
    for alias, owner in state.aliases.items():
        names[owner] = (*names.get(owner, (owner,)), alias)
    return names


def _mismatch(name: str, wanted: StoredTensor, header: TensorHeader) -> str | None:
    shape, dtype = tuple(wanted.tensor.shape), _dtype_name(wanted.tensor.dtype)
    if header.shape != shape:
        return f"{name!r} has shape {list(header.shape)}, the model's has {list(shape)}"
    if header.dtype != dtype:
        return f"{name!r} is {header.dtype}, the model's is {dtype}"
    return None


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _lost(name: str) -> ConfigError:
    module, _, leaf = name.rpartition(".")
    return ConfigError(
        f"the non-persistent buffer {name!r} is on the meta device and not among the weights",
        hint=f"give it values, as its module computes them: "
        f"model.get_submodule({module!r}).{leaf} = ...",
    )
