"""One real pass of the model on the example, which leaves no trace on it."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from ravnest.capture.diagnosis import first_lines, place_of
from ravnest.capture.example import Example, ExampleTensor
from ravnest.errors import CaptureError


def rehearse(model: nn.Module, example: Example) -> Any:
    """The model's output on copies of the example's tensors, without gradients.

    Buffers are afterwards as before; flags and random generators are the caller's business.

    Raises:
        Exception: whatever the model raises.
    """
    with ExitStack() as stack:
        for module in model.modules():
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    stack.callback(_put_back, module, key, buffer, buffer.clone())
        stack.enter_context(torch.no_grad())
        return example.call(model, [tensor.clone() for tensor in example.tensors])


def refuse_misfit(model: nn.Module, example: Example) -> None:
    """Raises what the model itself has to say against the example, if anything.

    Raises:
        CaptureError: the model raises an error of its own on the example.
    """
    try:
        rehearse(model, example)
    except Exception as error:
        given = ", ".join(
            f"{leaf.path} {str(leaf.value.dtype).removeprefix('torch.')} {list(leaf.value.shape)}"
            for leaf in example.leaves
            if isinstance(leaf, ExampleTensor)
        )
        raise CaptureError(
            f"the example does not fit {type(model).__name__}"
            f".forward{inspect.signature(model.forward)}: the model itself raises "
            f"{type(error).__name__}{place_of(error, model)}: {first_lines(str(error))}",
            hint=f"the example has {given}; call model(*example_args, **example_kwargs) to see "
            "the same",
        ) from error


def _put_back(module: nn.Module, key: str, buffer: torch.Tensor, values: torch.Tensor) -> None:
    module._buffers[key] = buffer.copy_(values)
