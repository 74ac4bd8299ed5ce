"""Compares the stages of a captured model with the model itself, for models of one test file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from capture_chain import assert_same, eval_chain, loss_of, train_chain
from torch import nn

from ravnest.capture.stage_file import LoadedStage
from ravnest.plan.structure import flatten

Compare = Callable[[Any, Any], None]


def assert_bitwise(actual: Any, expected: Any) -> None:
    """Equal nesting, and every tensor equal bit for bit in value and dtype."""
    left, shape = flatten(actual)
    right, wanted = flatten(expected)
    assert shape == wanted
    for one, other in zip(left, right, strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        else:
            assert one == other


def assert_stages_equal(
    stages: Sequence[LoadedStage],
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    same: Compare = assert_same,
) -> None:
    """Outputs, gradients and buffers of one training pass, and outputs in eval mode.

    Only for models that draw no random numbers.
    """
    kwargs = kwargs or {}
    trained = copy.deepcopy(model)
    output = trained(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    loss_of(output).backward()
    expected = {n: p.grad for n, p in trained.named_parameters() if p.grad is not None}
    buffers = dict(trained.named_buffers())
    actual = train_chain(stages, args, kwargs)
    same(actual.output, output)
    assert actual.gradients.keys() == expected.keys()
    same({name: actual.gradients[name] for name in expected}, expected)
    same(actual.buffers, {name: buffers[name] for name in actual.buffers})
    evaluated = copy.deepcopy(model).eval()
    with torch.no_grad():
        output = evaluated(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    same(eval_chain(stages, args, kwargs), output)
