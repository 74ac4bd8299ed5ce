"""The models whose memory is predicted and measured, in plain torch, and their microbatches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

SEED = 0
NUM_CLASSES = 10


@dataclass(frozen=True)
class Subject:
    """A model to train.

    Attributes:
        build: the model, seeded.
        inputs: of one microbatch.
        targets: of one microbatch; class indices.
    """

    build: Callable[[], nn.Module]
    inputs: torch.Tensor
    targets: torch.Tensor


def loss(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over the last dimension."""
    return functional.cross_entropy(predictions.flatten(0, -2), targets.flatten())


class Bottleneck(nn.Module):
    """The block of ResNet-50 (He et al. 2016): three convolutions over a skip."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.skip = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(x)), inplace=True)
        y = functional.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.norm3(self.conv3(y))
        y += self.skip(x)
        return functional.relu(y, inplace=True)


def resnet50() -> nn.Module:
    """ResNet-50 with 10 classes."""
    torch.manual_seed(SEED)
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(depth):
            layers.append(Bottleneck(inputs, width, stride if index == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, NUM_CLASSES)
    )


class Block(nn.Module):
    """A transformer block: attention and a feed-forward network, both over a skip.

    Args:
        causal: as in GPT, normalised before each part; else as in BERT, after it.
    """

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal, self.heads = causal, width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.causal:
            x = x + self._attend(self.norm1(x))
            return x + self.mlp(self.norm2(x))
        x = self.norm1(x + self._attend(x))
        return self.norm2(x + self.mlp(x))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, 2)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Transformer(nn.Module):
    """Token and position embeddings, blocks, and a head over the vocabulary or two classes."""

    def __init__(self, vocabulary: int, width: int, layers: int, *, causal: bool) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, causal=causal) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary if causal else NUM_CLASSES, bias=False)
        self.causal = causal

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.size(1), device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x if self.causal else x[:, 0]))


def _images(build: Callable[[], nn.Module], batch: int, channels: int, size: int) -> Subject:
    draw = torch.Generator().manual_seed(SEED)
    images = torch.rand(batch, channels, size, size, generator=draw)
    return Subject(build, images, torch.randint(0, NUM_CLASSES, (batch,), generator=draw))


def _text(
    batch: int, length: int, *, vocabulary: int, width: int, layers: int, causal: bool
) -> Subject:
    draw = torch.Generator().manual_seed(SEED)
    ids = torch.randint(0, vocabulary, (batch, length), generator=draw)
    targets = ids.roll(-1, 1) if causal else ids[:, 0] % NUM_CLASSES
    return Subject(lambda: Transformer(vocabulary, width, layers, causal=causal), ids, targets)


def digits_cnn() -> nn.Module:
    """The demo's network."""
    from examples.digits.model import DigitsCNN

    torch.manual_seed(SEED)
    return DigitsCNN()


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "digits CNN": lambda: _images(digits_cnn, 64, 1, 8),
    "small GPT": lambda: _text(4, 128, vocabulary=2048, width=256, layers=4, causal=True),
    "ResNet-50": lambda: _images(resnet50, 16, 3, 128),
    "GPT": lambda: _text(4, 256, vocabulary=16384, width=768, layers=12, causal=True),
    "large GPT": lambda: _text(1, 128, vocabulary=16384, width=1024, layers=18, causal=True),
    "BERT": lambda: _text(8, 128, vocabulary=30522, width=768, layers=12, causal=False),
}
