"""Submodules that cannot be captured, and factories for them, importable as a user's package is."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Doubled(torch.autograd.Function):
    """The identity, whose gradient is doubled."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


class Custom(nn.Module):
    """Has a gradient of its own, a buffer it assigns anew, and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 6), nn.BatchNorm1d(6)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls = self.calls + 1
        return Doubled.apply(self.norm(self.linear(x)))


class Branching(nn.Module):
    """Takes a path that depends on values; nested arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, more: dict[str, Any], scale: float = 1.0) -> dict[str, Any]:
        chosen = self.a if x.sum() > 0 else self.b
        y = chosen(x) * scale + more["y"]
        return {"y": y, "sizes": (y.sum(-1), torch.argmax(y, -1))}


def custom() -> nn.Module:
    return Custom()


def branching() -> nn.Module:
    return Branching()


def no_module() -> int:
    return 3


def broken() -> nn.Module:
    raise RuntimeError("no such licence")
