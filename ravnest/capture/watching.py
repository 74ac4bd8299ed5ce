"""Sees what the exporter would lose in silence: custom autograd functions and tensor hooks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ravnest.capture.diagnosis import Place, current_place


@dataclass(slots=True)
class Sightings:
    """What a trace used that a captured graph would lose.

    Attributes:
        functions: names of custom autograd functions, and where each was used.
        hooks: where `register_hook` of a tensor was called.
    """

    functions: list[tuple[str, Place]] = field(default_factory=list)
    hooks: list[Place] = field(default_factory=list)


@contextmanager
def watched(model: nn.Module) -> Iterator[Sightings]:
    """Notes custom autograd functions and tensor hooks, which the exporter drops in silence.

    A function's `apply` may have been bound long ago, so its `forward` is watched as well.
    """
    seen = Sightings()
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    def note(function: type) -> None:
        name = f"{function.__module__}.{function.__qualname__}"
        seen.functions.append((name, current_place(model)))

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_internal(cls):
            note(cls)
        return original_apply.__get__(None, cls)(*args, **kwargs)

    def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
        seen.hooks.append(current_place(model))
        return original_hook(tensor, hook)

    original_apply: Any = inspect.getattr_static(torch.autograd.Function, "apply")
    original_hook: Any = torch.Tensor.register_hook
    try:
        replace(torch.autograd.Function, "apply", classmethod(apply))
        replace(torch.Tensor, "register_hook", register_hook)
        for function in _custom_functions(torch.autograd.Function):
            if isinstance(vars(function).get("forward"), staticmethod):
                replace(function, "forward", _noting(function, note))
        yield seen
    finally:
        for owner, name, value in reversed(replaced):
            if value is None:
                delattr(owner, name)  # it was inherited
            else:
                setattr(owner, name, value)


def _noting(function: type, note: Callable[[type], None]) -> Any:
    """A stand-in for a function's forward that notes its use."""
    original = vars(function)["forward"].__func__

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        note(function)
        return original(*args, **kwargs)

    return staticmethod(forward)


def _custom_functions(base: Any) -> Iterator[type]:
    function: type
    for function in base.__subclasses__():
        if not _is_internal(function):
            yield function
        yield from _custom_functions(function)


# With it torch 2.11 saves the inputs of a checkpoint; no gradient ever goes through it.
_WITHOUT_GRADIENT = ("torch.utils.checkpoint", "_NoopSaveInputs")


def _is_internal(cls: type) -> bool:
    """Whether torch itself uses the function in tracing; those it offers to models are not."""
    is_tracing = cls.__module__ == "torch" or cls.__module__.startswith("torch._")
    return is_tracing or (cls.__module__, cls.__name__) == _WITHOUT_GRADIENT
