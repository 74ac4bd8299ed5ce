"""The networks that stand for all others when a machine's speed is measured.

One of each kind whose operators load a machine differently: matrix products with attention and
normalization, convolutions with batch normalization, bare matrix products. Their work is counted by
the planner's own means, so that a measured rate is in the planner's unit whatever it counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from ravnest.capture.exporting import capture_model
from ravnest.planning.inputs.settings import BACKWARD_AND_FORWARD, FLOPS_PER_BYTE_WRITTEN

_WIDTH = 768
_HEADS = 12
_CONTEXT = 256
_CHANNELS = 256
_IMAGE = 16
_FEATURES = 1024
_ROWS = 128
# An example of one sample could be taken for a constant.
_EXAMPLE_SAMPLES = 2


class TransformerBlock(nn.Module):
    """Causal attention and a feed-forward layer, (N, T, 768) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(_WIDTH)
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.feed_norm = nn.LayerNorm(_WIDTH)
        self.up = nn.Linear(_WIDTH, 4 * _WIDTH)
        self.down = nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        heads = self.qkv(self.attention_norm(x)).view(n, t, 3, _HEADS, width // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
        y: torch.Tensor = x + self.down(functional.gelu(self.up(self.feed_norm(x))))
        return y


class Bottleneck(nn.Module):
    """A residual block of three convolutions, (N, 256, H, W) to the same."""

    def __init__(self) -> None:
        super().__init__()
        narrow = _CHANNELS // 4
        self.body = nn.Sequential(
            *(nn.Conv2d(_CHANNELS, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU()),
            *(nn.Conv2d(narrow, narrow, 3, padding=1, bias=False), nn.BatchNorm2d(narrow)),
            *(nn.ReLU(), nn.Conv2d(narrow, _CHANNELS, 1, bias=False), nn.BatchNorm2d(_CHANNELS)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = functional.relu(x + self.body(x))
        return y


@dataclass(frozen=True, slots=True)
class Reference:
    """A network to measure with.

    Attributes:
        build: makes it.
        sample_shape: shape of one sample of its input; its output has that shape too.
    """

    name: str
    build: Callable[[], nn.Module]
    sample_shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What a training step costs per sample.

    Attributes:
        operations: in the planner's unit, memory traffic included.
        forward_flops: floating-point operations of the forward pass alone.
        written_bytes: bytes that its operators write on the way forward.
        saved_bytes: activation bytes kept for backward.
    """

    operations: float
    forward_flops: float
    written_bytes: float
    saved_bytes: float


def _convolutional() -> nn.Module:
    return nn.Sequential(Bottleneck(), Bottleneck())


def _perceptron() -> nn.Module:
    layers = [nn.Linear(_FEATURES, _FEATURES) for _ in range(4)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


REFERENCES = (
    Reference("transformer", TransformerBlock, (_CONTEXT, _WIDTH)),
    Reference(
        "convolutional",
        _convolutional,
        (_CHANNELS, _IMAGE, _IMAGE),
    ),
    Reference("perceptron", _perceptron, (_ROWS, _FEATURES)),
)


def work_of(reference: Reference, dtype: torch.dtype) -> Work:
    """Counts the work of one sample; computes nothing."""
    with torch.device("meta"):
        model = reference.build().to(dtype)
        example = torch.empty((_EXAMPLE_SAMPLES, *reference.sample_shape), dtype=dtype)
    costs = capture_model(model, (example,), {}).costs
    flops, written_bytes = sum(costs.forward_flops), sum(costs.output_bytes)
    operations = BACKWARD_AND_FORWARD * flops + FLOPS_PER_BYTE_WRITTEN * written_bytes
    return Work(
        operations=operations / _EXAMPLE_SAMPLES,
        forward_flops=flops / _EXAMPLE_SAMPLES,
        written_bytes=written_bytes / _EXAMPLE_SAMPLES,
        saved_bytes=sum(costs.saved_bytes) / _EXAMPLE_SAMPLES,
    )
