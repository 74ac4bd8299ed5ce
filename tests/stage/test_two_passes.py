"""A backward pass in two gives the bits of one, or is one where it cannot be two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ravnest.stage.two_passes import WeightPass, backward_of_inputs

Outputs = tuple[torch.Tensor, ...]


class Attention(nn.Module):
    """A transformer's layer, with norms, biases and a residual way."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> Outputs:
        h = self.norm(x)
        x = x + self.attention(h, h, h)[0]
        return (x + self.down(F.gelu(self.up(x))),)


class Convolutions(nn.Module):
    """Convolution and BatchNorm, as images have them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)
        self.two = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Outputs:
        return (self.two(torch.relu(self.norm(self.one(x)))),)


class SeveralOutputs(nn.Module):
    """An output per kind: computed, passed through, of weights alone, and a slice of a node."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.position = nn.Linear(8, 8), nn.Embedding(8, 8)

    def forward(self, x: torch.Tensor) -> Outputs:
        one, other = self.layer(x).chunk(2, dim=-1)
        return one * 2, x, self.position(torch.arange(8)) + 1, other


class WeightPath(nn.Module):
    """Weights that are computed with before they are used, and one used beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Parameter(torch.randn(8, 2)), nn.Parameter(torch.randn(2, 8))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> Outputs:
        return (torch.tanh(x @ (self.low @ self.high).tanh() + self.bias),)


class Shared(nn.Module):
    """One weight twice on the way: cannot be split."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Outputs:
        return (self.layer(torch.tanh(self.layer(x))),)


class NoWay(nn.Module):
    """No input leads to the output: nothing to send, so nothing to split."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Outputs:
        return (self.layer(x.detach()),)


MODELS = [Attention, Convolutions, SeveralOutputs, WeightPath, Shared, NoWay]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("scalar", [False, True])
def test_two_passes_have_the_bits_of_one(kind: Callable[[], Any], scalar: bool) -> None:
    torch.manual_seed(0)
    model = kind()
    weights = list(model.parameters())
    shape = (5, 4, 8)

    def roots_of(x: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
        outputs = [each for each in model(x) if each.requires_grad]
        if scalar:
            return [sum((each**2).mean() for each in outputs)], [None]  # type: ignore[list-item]
        draw = torch.Generator().manual_seed(3)
        return outputs, [torch.randn(each.shape, generator=draw) for each in outputs]

    x = torch.randn(shape, requires_grad=True)
    for _ in range(2):  # gradients add up
        torch.autograd.backward(*roots_of(x))
    whole = [weight.grad for weight in weights], x.grad
    for weight in weights:
        weight.grad = None
    hooked: list[torch.Tensor] = []
    for weight in weights:
        weight.register_post_accumulate_grad_hook(hooked.append)
    y = x.detach().requires_grad_()
    found: list[torch.Tensor | None] = []
    left: list[WeightPass] = []
    for _ in range(2):
        split = backward_of_inputs(*roots_of(y), [y], weights)
        assert (split is None) == (kind in (Shared, NoWay))
        if split is None:
            assert all(each.grad is None for each in (y, *weights)), "nothing is computed yet"
            continue
        (gradient,), rest = split
        found.append(gradient)
        left.append(rest)
    if not left:
        return
    assert all(weight.grad is None for weight in weights), "weights come later"
    for rest in left:
        rest.run()
    for weight, expected in zip(weights, whole[0], strict=True):
        assert (weight.grad is None) == (expected is None)
        assert expected is None or torch.equal(weight.grad, expected)
    assert len(hooked) == 2 * sum(expected is not None for expected in whole[0])
    assert y.grad is None
    assert whole[1] is not None
    assert found[0] is not None
    assert found[1] is not None
    torch.testing.assert_close(found[0] + found[1], whole[1], atol=0, rtol=0)


def test_the_second_pass_computes_weights_alone() -> None:
    """And the first one none: every product of a linear layer is computed once."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    weights = list(model.parameters())
    x = torch.randn(4, 8, requires_grad=True)

    def products(work: Callable[[], Any]) -> int:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
        ) as profile:
            work()
        return sum(e.count for e in profile.key_averages() if e.key == "aten::mm")

    y = model(x)
    left: list[Any] = []
    first = products(lambda: left.append(backward_of_inputs([y.sum()], [None], [x], weights)))
    second = products(left[0][1].run)
    assert (first, second) == (3, 3)
