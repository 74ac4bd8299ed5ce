"""The model's state by name: what is stored, what is tied, what travels as a constant.

Tied names (two names of one tensor) are stored once, under the first parameter name of the state
dict.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ravnest.errors import CaptureError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of the model under the name it is stored by.

    Attributes:
        tensor: the model's own tensor, not a copy.
        is_parameter: False for a buffer.
        trainable: a parameter that wants a gradient.
        persistent: part of the state dict; False for non-persistent buffers and lifted constants.
    """

    name: str
    tensor: torch.Tensor
    is_parameter: bool
    trainable: bool
    persistent: bool

    @property
    def num_bytes(self) -> int:
        """Bytes of its values."""
        return self.tensor.numel() * self.tensor.element_size()


@dataclass(frozen=True, slots=True)
class StateInventory:
    """Everything a model remembers.

    Attributes:
        stored: parameters and persistent buffers by stored name, in the model's order.
        constants: non-persistent buffers and lifted constants by name.
        aliases: tied names, from each further name to the stored name (of `stored` or `constants`).
        state_names: every key of the original state dict, in order (aliases included).
    """

    stored: Mapping[str, StoredTensor]
    constants: Mapping[str, StoredTensor]
    aliases: Mapping[str, str]
    state_names: tuple[str, ...]

    def find(self, name: str) -> StoredTensor:
        """The tensor of a stored name or constant; KeyError when there is none."""
        return self.stored[name] if name in self.stored else self.constants[name]


def take_inventory(model: nn.Module) -> StateInventory:
    """Lists a model's registered state, tied names resolved.

    Raises:
        CaptureError: no parameters, a lazy parameter, or a state dict with names of its own.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    if not parameters:
        raise CaptureError(
            f"{type(model).__name__} has no parameters, so there is nothing to train",
            hint="pass a model with at least one torch.nn.Parameter",
        )
    for name, tensor in (*parameters.items(), *buffers.items()):
        if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
            raise CaptureError(
                f"{name} has no shape yet (a lazy module)",
                hint="run the model once on an example batch before passing it",
            )
    keys = _state_names(model, parameters.keys() | buffers.keys())
    order = [*keys, *(name for name in buffers if name not in set(keys))]
    return _resolve(parameters, buffers, keys, order)


def _resolve(
    parameters: dict[str, nn.Parameter],
    buffers: dict[str, torch.Tensor],
    keys: tuple[str, ...],
    order: list[str],
) -> StateInventory:
    persistent = set(keys)
    first: dict[int, str] = {}
    for name in (*(n for n in order if n in parameters), *order):
        first.setdefault(id(parameters.get(name, buffers.get(name))), name)
    stored: dict[str, StoredTensor] = {}
    constants: dict[str, StoredTensor] = {}
    aliases: dict[str, str] = {}
    for name in order:
        tensor = parameters[name] if name in parameters else buffers[name]
        if (owner := first[id(tensor)]) != name:
            aliases[name] = owner
            continue
        into = stored if name in persistent else constants
        is_parameter = name in parameters
        trainable = is_parameter and tensor.requires_grad
        into[name] = StoredTensor(name, tensor, is_parameter, trainable, name in persistent)
    return StateInventory(stored, constants, aliases, keys)


def _state_names(model: nn.Module, registered: set[str]) -> tuple[str, ...]:
    """Keys of the state dict that are tensors; each must be a registered parameter or buffer."""
    found: list[str] = []
    for key, value in model.state_dict(keep_vars=True).items():
        if key in registered:
            found.append(key)
        elif isinstance(value, torch.Tensor):
            raise CaptureError(
                f"the state dict has a tensor {key!r} that is no registered parameter or buffer",
                hint="register it with register_buffer, or drop the hook that renames it",
            )
        else:
            logger.warning(
                "%s is no tensor and is not trained or saved: load it from the original model", key
            )
    return tuple(found)
