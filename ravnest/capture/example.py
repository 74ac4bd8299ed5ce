"""The example call a model is captured with: taken apart into leaves, and put together again."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ravnest.capture.signature import Argument, ArgumentKind, ConstantLeaf
from ravnest.errors import CaptureError
from ravnest.plan.structure import flatten

_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: ArgumentKind.POSITIONAL,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ArgumentKind.POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY: ArgumentKind.KEYWORD,
    inspect.Parameter.VAR_POSITIONAL: ArgumentKind.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD: ArgumentKind.VAR_KEYWORD,
}


@dataclass(frozen=True, slots=True)
class ExampleTensor:
    """A tensor of the example and the path it was found at, like `batch.x`."""

    path: str
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class Example:
    """An example call by parameter of `forward`.

    Attributes:
        arguments: every parameter, those left out included.
        leaves: tensors and baked values that the arguments' structures index into.
        supplied: the values as given, by parameter name.
    """

    arguments: tuple[Argument, ...]
    leaves: tuple[ExampleTensor | ConstantLeaf, ...]
    supplied: Mapping[str, Any]

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors, in order."""
        return tuple(leaf.value for leaf in self.leaves if isinstance(leaf, ExampleTensor))

    def call(self, model: nn.Module, tensors: Sequence[torch.Tensor]) -> Any:
        """Calls the model with these tensors in place of the example's."""
        rest = iter(tensors)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        skipped = False
        for argument in self.arguments:
            if argument.name not in self.supplied:
                skipped = True
                continue
            value = replace_tensors(self.supplied[argument.name], rest)
            match argument.kind:
                case ArgumentKind.VAR_POSITIONAL:
                    args.extend(value)
                case ArgumentKind.VAR_KEYWORD:
                    kwargs.update(value)
                case ArgumentKind.POSITIONAL if not skipped:
                    args.append(value)
                case _:
                    kwargs[argument.name] = value
        return model(*args, **kwargs)


def take_example(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Example:
    """Takes an example call apart.

    Raises:
        CaptureError: it does not fit `forward`, has no tensor, or has a leaf that is neither tensor
            nor plain value.
    """
    signature = inspect.signature(model.forward)
    try:
        supplied = signature.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise CaptureError(
            f"the example does not fit {type(model).__name__}.forward{signature}: {error}",
            hint="give example_args as a tuple and example_kwargs as a dict of forward's inputs",
        ) from error
    leaves: list[ExampleTensor | ConstantLeaf] = []
    arguments = tuple(
        _take_argument(parameter, supplied, leaves) for parameter in signature.parameters.values()
    )
    if not any(isinstance(leaf, ExampleTensor) for leaf in leaves):
        raise CaptureError(
            "the example has no tensor", hint="pass at least one input tensor in example_args"
        )
    return Example(arguments, tuple(leaves), supplied)


def _take_argument(
    parameter: inspect.Parameter,
    supplied: Mapping[str, Any],
    leaves: list[ExampleTensor | ConstantLeaf],
) -> Argument:
    kind = _KINDS[parameter.kind]
    has_default = parameter.default is not parameter.empty and _is_plain(parameter.default)
    default = parameter.default if has_default else None
    if parameter.name in supplied:
        value = supplied[parameter.name]
    elif has_default:
        value = default
    elif parameter.default is parameter.empty:  # *args or **kwargs that nobody used
        value = () if kind is ArgumentKind.VAR_POSITIONAL else {}
    else:
        return Argument(parameter.name, kind, None)
    found, structure = flatten(value)
    paths = _paths(structure, parameter.name)
    indices: list[int] = []
    for leaf, path in zip(found, paths, strict=True):
        indices.append(len(leaves))
        if isinstance(leaf, torch.Tensor):
            leaves.append(ExampleTensor(path, leaf.detach()))
        elif _is_plain(leaf):
            leaves.append(ConstantLeaf(leaf))
        else:
            raise CaptureError(
                f"input {path!r} is a {type(leaf).__name__}: neither tensor nor plain value",
                hint="inputs may be tensors, bool, int, float, str, None and containers of them",
            )
    return Argument(parameter.name, kind, _shift(structure, indices), default, has_default)


def _shift(structure: Any, indices: Sequence[int]) -> Any:
    """The same structure with leaf i renumbered to indices[i]."""
    if isinstance(structure, int):
        return indices[structure]
    ((kind, children),) = structure.items()
    if kind in ("dict", "record"):
        return {kind: [[key, _shift(child, indices)] for key, child in children]}
    return {kind: [_shift(child, indices) for child in children]}


def _paths(structure: Any, path: str) -> list[str]:
    if isinstance(structure, int):
        return [path]
    ((kind, children),) = structure.items()
    if kind not in ("dict", "record"):
        children = list(enumerate(children))
    for key, _ in children:
        if not isinstance(key, (str, int)):
            raise CaptureError(
                f"input {path!r} has the key {key!r}", hint="use str or int keys in dict inputs"
            )
    return [found for key, child in children for found in _paths(child, f"{path}.{key}")]


def tile_single(example: Example) -> Example:
    """The example with its batch of 1 doubled; the same example when its batch is not 1.

    A size of 1 would be baked into the graph, since broadcasting treats it apart.
    """
    ranked = [tensor for tensor in example.tensors if tensor.dim() >= 1]
    if not ranked or any(tensor.shape[0] != 1 for tensor in ranked):
        return example
    return doubled(example)


def doubled(example: Example) -> Example:
    """The example with every tensor repeated along its first dimension."""
    leaves = tuple(
        ExampleTensor(leaf.path, torch.cat([leaf.value, leaf.value]))
        if isinstance(leaf, ExampleTensor) and leaf.value.dim() >= 1
        else leaf
        for leaf in example.leaves
    )
    return dataclasses.replace(example, leaves=leaves)


def without_values(example: Example) -> Example:
    """The example on the meta device, for a model that is there."""
    leaves = tuple(
        ExampleTensor(leaf.path, leaf.value.to("meta")) if isinstance(leaf, ExampleTensor) else leaf
        for leaf in example.leaves
    )
    return dataclasses.replace(example, leaves=leaves)


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def replace_tensors(value: Any, tensors: Any) -> Any:
    """A container like `value`, of the same type, with its tensors taken from an iterator."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if type(value) is dict:
        return {key: replace_tensors(child, tensors) for key, child in value.items()}
    if isinstance(value, Mapping):
        copied: Any = copy.copy(value)
        for key, child in value.items():
            copied[key] = replace_tensors(child, tensors)
        return copied
    if isinstance(value, (list, tuple)):
        children = [replace_tensors(child, tensors) for child in value]
        return type(value)(*children) if hasattr(value, "_fields") else type(value)(children)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(
                copied, field.name, replace_tensors(getattr(value, field.name), tensors)
            )
        return copied
    return value
