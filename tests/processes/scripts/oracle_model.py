"""The model of the oracle task. Providers never import this file."""

from __future__ import annotations

import torch


class Residual(torch.nn.Module):
    """Convolutions with BatchNorm, a skip over several stages, in-place ReLU, dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.bn_1 = torch.nn.BatchNorm2d(8)
        self.conv_1 = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.bn_2 = torch.nn.BatchNorm2d(8)
        self.conv_2 = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.bn_3 = torch.nn.BatchNorm2d(8)
        self.drop = torch.nn.Dropout(dropout)
        self.head = torch.nn.Linear(8 * 8 * 8, 16)
        self.out = torch.nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (N, 5) of images (N, 3, 8, 8)."""
        skip = torch.relu_(self.bn_1(self.stem(x)))
        x = torch.relu_(self.bn_2(self.conv_1(skip)))
        x = self.bn_3(self.conv_2(self.drop(x)))
        x += skip
        x = torch.relu(self.head(torch.flatten(x, 1)))
        return self.out(self.drop(x))
