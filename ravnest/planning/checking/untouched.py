"""Runs a model without leaving a trace on it or on the process's random generators."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Puts everything back at the end: attributes, training flags, values, random generators.

    Attributes that are containers are put back as the objects they were; what a forward pass
    appends to one stays. Holds a copy of the model's parameters and buffers meanwhile. Gradients
    are the caller's business: use torch.autograd.grad, which leaves `.grad` alone.
    """
    tensors = (*model.parameters(), *model.buffers())
    values = [(tensor, tensor.detach().clone()) for tensor in tensors]
    flags = [(module, module.training) for module in model.modules()]
    namespaces = [
        (namespace, dict(namespace)) for module in model.modules() for namespace in _of(module)
    ]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for namespace, members in namespaces:
            namespace.clear()
            namespace.update(members)
        for module, flag in flags:
            if module.training != flag:  # a ScriptModule keeps it where no namespace shows it
                module.training = flag
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def _of(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Where a module keeps attributes, parameters and buffers."""
    yield vars(module)
    for namespace in (module._parameters, module._buffers):
        if isinstance(namespace, dict):
            yield namespace
