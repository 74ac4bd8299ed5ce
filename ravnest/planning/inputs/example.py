"""The model and example inputs that clusterize is called with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ravnest.errors import ConfigError


def checked_example(
    model: Any, example_args: Any, example_kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs; ConfigError where model or inputs are of a wrong type."""
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"model is of type {type(model).__name__}; expected a torch.nn.Module instance",
            hint="call the class: clusterize(MyModel(), ...)" if isinstance(model, type) else None,
        )
    if not isinstance(example_args, (tuple, list)):
        raise ConfigError(
            f"example_args is of type {type(example_args).__name__}; expected a tuple of inputs",
            hint="write example_args=(x,) for one input x",
        )
    if example_kwargs is not None and not isinstance(example_kwargs, Mapping):
        raise ConfigError(
            f"example_kwargs is of type {type(example_kwargs).__name__}; expected a dict or None"
        )
    return tuple(example_args), dict(example_kwargs or {})


def num_samples(example: Any) -> int:
    """First dimension of the first tensor in nested example inputs; 1 where there is none."""
    return next(_first_dimensions(example), 1)


def _first_dimensions(value: Any) -> Iterator[int]:
    if isinstance(value, torch.Tensor) and value.dim():
        yield int(value.shape[0])
    for each in value.values() if isinstance(value, Mapping) else ():
        yield from _first_dimensions(each)
    for each in value if isinstance(value, (tuple, list)) else ():
        yield from _first_dimensions(each)
