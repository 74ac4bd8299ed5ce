"""Submodules that stay the user's code: a leaf is one operator of a graph and runs a Python module.

What cannot be captured (a custom autograd function, a path that depends on values) may stay as it
is when the user names a factory for it: a function without arguments that builds the submodule. A
stage file then holds the factory's name and the leaf's own tensors, never code; a provider imports
only factories that its operator has named.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ravnest.errors import CaptureError
from ravnest.plan.structure import Structure, flatten, unflatten

OPERATOR = "leaf"
"""The name of a leaf where a stage file names an operator."""

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)

Plain = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """A leaf at one place of a graph, as plain data.

    Attributes:
        path: of the submodule in the model.
        factory: `package.module:function` that builds it.
        parameters: names of its parameters within it.
        buffers: names of its buffers, persistent or not.
        training: its submodules in training mode, "" for itself.
        call: how (args, kwargs) nest.
        call_leaves: per leaf of `call` the index of an input tensor, None for a plain value.
        call_values: the plain values, None where there is a tensor.
    """

    path: str
    factory: str
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    training: tuple[str, ...]
    call: Structure
    call_leaves: tuple[int | None, ...]
    call_values: tuple[Plain, ...]


class LeafCall:
    """Runs a leaf as an operator: lists of input and state tensors to the list of result tensors.

    Args:
        spec: what to run.
        module: the submodule; its own tensors are not used, its flags are as before afterwards.
    """

    def __init__(self, spec: LeafSpec, module: nn.Module) -> None:
        self.spec = spec
        self.__name__ = self.__qualname__ = OPERATOR
        self._module = module
        # Found once: torch.func.functional_call looks everything up each time, for 0.3 ms.
        self._slots = [_slot_of(module, name) for name in (*spec.parameters, *spec.buffers)]
        training = set(spec.training)
        self._modes = [(each, name in training) for name, each in module.named_modules()]

    def __call__(
        self, inputs: Sequence[torch.Tensor], state: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        spec = self.spec
        leaves = [
            value if index is None else inputs[index]
            for index, value in zip(spec.call_leaves, spec.call_values, strict=True)
        ]
        args, kwargs = unflatten(spec.call, leaves)
        with self._in_modes(), self._holding(state) as held:
            output = self._module(*args, **kwargs)
        with torch.no_grad():
            first = len(spec.parameters)
            for buffer, now in zip(state[first:], held[first:], strict=True):
                if now is not buffer:  # the module has put another one in its place
                    buffer.copy_(now)
        return result_tensors(output, spec.path)

    @contextmanager
    def _holding(self, state: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """Puts tensors in the places of the module's own; yields what is there afterwards."""
        own = [held[name] for held, name in self._slots]
        after: list[torch.Tensor] = []
        try:
            for (held, name), tensor in zip(self._slots, state, strict=True):
                held[name] = tensor
            yield after
            after += [held[name] for held, name in self._slots]
        finally:
            for (held, name), tensor in zip(self._slots, own, strict=True):
                held[name] = tensor

    @contextmanager
    def _in_modes(self) -> Iterator[None]:
        """Sets which submodules are in training mode, and puts the flags back."""
        before = [each.training for each, _ in self._modes]
        try:
            for each, flag in self._modes:
                each.training = flag
            yield
        finally:
            for (each, _), flag in zip(self._modes, before, strict=True):
                each.training = flag


def _slot_of(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Where a module keeps the tensor of that name, and under which."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    return (owner._parameters if last in owner._parameters else owner._buffers), last


def result_tensors(output: Any, path: str) -> list[torch.Tensor]:
    """The tensors of a leaf's output; CaptureError when it has anything else."""
    found, _ = flatten(output)
    for each in found:
        if not isinstance(each, torch.Tensor):
            raise CaptureError(
                f"the leaf {path!r} returns a {type(each).__name__}",
                hint="a leaf may return tensors and containers of them",
            )
    return found


def is_factory_name(text: str) -> bool:
    """Whether a text has the form `package.module:function`."""
    return _FACTORY.fullmatch(text) is not None


def build_leaf(factory: str, shapes: Mapping[str, tuple[int, ...]]) -> nn.Module:
    """Imports a factory that somebody has vouched for, and builds the submodule.

    Args:
        factory: `package.module:function`.
        shapes: shape per name of the parameters and buffers it must have.

    Raises:
        CaptureError: it cannot be imported, or builds something else.
    """
    module_name, _, names = factory.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in names.split("."):
            found = getattr(found, name)
        module = found()
    except Exception as error:  # the user's code: whatever it raises is the reason
        raise CaptureError(
            f"the factory {factory!r} cannot be used: {type(error).__name__}: {error}",
            hint="it is imported as package.module and called without arguments",
        ) from error
    if not isinstance(module, nn.Module):
        raise CaptureError(
            f"the factory {factory!r} returned a {type(module).__name__}, expected a module"
        )
    built = {name: tuple(tensor.shape) for name, tensor in state_of(module).items()}
    if built != dict(shapes):
        differing = sorted(n for n in built.keys() | shapes if built.get(n) != shapes.get(n))
        raise CaptureError(
            f"the factory {factory!r} builds a module with other tensors: {differing[:5]} differ",
            hint="it must build what the model has at this place, with the same sizes",
        )
    return module


def state_of(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, then buffers, of a module by name, tied ones under each name."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
