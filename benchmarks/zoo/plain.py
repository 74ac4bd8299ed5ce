"""Feed-forward, convolutional and recurrent models of torch alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.zoo.entry import NUM_TOKENS, Entry, images, tokens, vectors


class Mlp(nn.Module):
    """Linear layers with in-place activations and dropout."""

    def __init__(self, width: int = 32, depth: int = 6) -> None:
        super().__init__()
        blocks = [
            part
            for _ in range(depth)
            for part in (nn.Linear(width, width), nn.ReLU(inplace=True), nn.Dropout(0.2))
        ]
        self.net = nn.Sequential(*blocks, nn.Linear(width, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Cnn(nn.Module):
    """Convolutions with BatchNorm, and both kinds of dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.drop, self.head = nn.Dropout2d(0.2), nn.Linear(16 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x)), inplace=True), 2)
        x = F.adaptive_avg_pool2d(self.drop(F.relu(self.norm2(self.conv2(x)))), 4)
        x = F.dropout(x.view(x.size(0), -1), 0.3, training=self.training)
        return self.head(x)


class UNet(nn.Module):
    """Skips from every level of the way down to the way up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = _block(2, width), _block(width, 2 * width)
        self.middle = _block(2 * width, 2 * width)
        self.up2, self.up1 = _block(4 * width, width), _block(2 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = F.interpolate(self.middle(F.max_pool2d(second, 2)), scale_factor=2)
        x = F.interpolate(self.up2(torch.cat([x, second], 1)), scale_factor=2)
        return self.head(self.up1(torch.cat([x, first], 1)))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class Recurrent(nn.Module):
    """An embedding, a recurrent network of two layers, and a head over its last output."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, 16)
        self.network = kind(16, 24, num_layers=2, batch_first=True, bidirectional=kind is nn.GRU)
        self.norm = nn.LayerNorm(48 if kind is nn.GRU else 24)
        self.head = nn.Linear(self.norm.normalized_shape[0], 5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output, _ = self.network(self.embedding(ids))
        return self.head(F.gelu(self.norm(output[:, -1])))


ENTRIES = (
    Entry("MLP", Mlp, vectors(32)),
    Entry("CNN with BatchNorm and dropout", Cnn, images(3, 16)),
    Entry("U-Net", UNet, images(2, 16)),
    Entry("LSTM", lambda: Recurrent(nn.LSTM), lambda b, s: ((tokens(b, s),), {}), other_length=16),
    Entry("GRU", lambda: Recurrent(nn.GRU), lambda b, s: ((tokens(b, s),), {}), other_length=16),
)
