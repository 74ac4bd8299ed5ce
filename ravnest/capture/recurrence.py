"""Shape rules for recurrent networks while the exporter traces them.

torch finds the shapes of `lstm`, `gru` and `rnn` by unrolling them over the example's time steps,
which fixes the sequence length and takes long. The operators stay whole in the graph either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_aten = torch.ops.aten
_KEYS = (torch._C.DispatchKey.CompositeImplicitAutograd, torch._C.DispatchKey.Autograd)


@contextmanager
def rolled_recurrence() -> Iterator[None]:
    """Finds shapes of recurrent operators from shapes alone while it is open."""
    rules: dict[Any, Any] = {_aten.lstm.input: _lstm}
    rules |= dict.fromkeys((_aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input), _one)
    before = {(op, key): op.py_kernels.get(key) for op in rules for key in _KEYS}
    try:
        for op, key in before:
            op.py_kernels[key] = rules[op]
        yield
    finally:
        for (op, key), kernel in before.items():
            if kernel is None:
                del op.py_kernels[key]
            else:
                op.py_kernels[key] = kernel


def _output(
    inputs: torch.Tensor, hidden: torch.Tensor, params: Sequence[torch.Tensor], bidirectional: bool
) -> torch.Tensor:
    """(..., features) of both directions, wanting a gradient when an argument does."""
    width = hidden.shape[-1] * (2 if bidirectional else 1)
    touched = sum((each.sum() for each in (hidden, *params)), start=inputs.sum())
    return inputs.new_empty((*inputs.shape[:-1], width)) + touched


def _lstm(
    inputs: torch.Tensor,
    hx: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    output = _output(inputs, hx[0], params, bidirectional)
    touched = output.sum()
    return output, hx[0] + touched, hx[1] + touched


def _one(
    inputs: torch.Tensor,
    hx: torch.Tensor,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    output = _output(inputs, hx, params, bidirectional)
    return output, hx + output.sum()
