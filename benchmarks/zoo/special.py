"""Small models of torch alone that each have something a capture or a cut can lose in silence."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo.entry import BFLOAT16_TOLERANCE, Call, Entry, images, vectors
from benchmarks.zoo.plain import Mlp, UNet
from benchmarks.zoo.trusted import clip

WIDTH = 16


class Buffers(nn.Module):
    """Buffers that training updates, one that it only reads, and one that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)
        self.register_buffer("average", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.full((WIDTH,), 1.5), persistent=False)
        self.register_buffer("shift", torch.full((WIDTH,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.first(x)) * self.scale
        if self.training:
            self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
            self.count += 1
        h = torch.tanh(self.second(h)) - self.average + self.shift
        return self.head(h * self.scale)


class CustomFunction(nn.Module):
    """A custom `autograd.Function` between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.clip, self.head = clip(), nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.clip(torch.tanh(self.first(x)))
        return self.head(torch.tanh(self.second(x)))


class NestedDicts(nn.Module):
    """Nested containers of tensors and plain values, both in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, batch: dict[str, Any], scale: float = 2.0) -> dict[str, Any]:
        hidden = torch.relu(self.first(batch["x"])) * scale
        gate = torch.sigmoid(self.second(hidden) + batch["more"]["shift"][0])
        return {
            "logits": self.head(hidden * gate),
            "hidden": [hidden, {"gate": gate}],
            "none": None,
            "rows": hidden.size(0),
        }


class Autocast(nn.Module):
    """A region in bfloat16 between float32 layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            x = torch.tanh(self.second(x))
        return self.head(x.float())


class NoGrad(nn.Module):
    """A region without gradients, whose results others use."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        with torch.no_grad():
            gate = torch.sigmoid(self.second(x))
        return self.head(torch.tanh(self.second(x)) * gate)


class Checkpointed(nn.Module):
    """Layers whose activations are computed again in backward, dropout included."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


def frozen_backbone() -> nn.Module:
    """A U-Net without gradients and in eval mode, and a head that trains."""
    backbone = UNet().requires_grad_(False)
    backbone.eval()
    head = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    return nn.Sequential(backbone, head)


def scripted() -> nn.Module:
    """A scripted model as it comes from a file."""
    return _from_file(torch.jit.script(Mlp()))


def traced() -> nn.Module:
    """A traced model as it comes from a file."""
    model = Mlp()
    return _from_file(torch.jit.trace(model, torch.randn(2, 32), check_trace=False))


def _from_file(module: torch.jit.ScriptModule) -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def _nested(batch: int, _: int) -> Call:
    shift = [torch.randn(batch, WIDTH)]
    return ({"x": torch.randn(batch, WIDTH), "more": {"shift": shift}},), {"scale": 0.5}


ENTRIES = (
    Entry("buffers updated in forward", Buffers, vectors(WIDTH)),
    Entry(
        "custom autograd.Function",
        CustomFunction,
        vectors(WIDTH),
        leaves={"clip": "benchmarks.zoo.trusted:clip"},
    ),
    Entry("nested dict input and output", NestedDicts, _nested),
    Entry("autocast region", Autocast, vectors(WIDTH), tolerance=BFLOAT16_TOLERANCE),
    Entry("no_grad region", NoGrad, vectors(WIDTH)),
    Entry("torch.utils.checkpoint", Checkpointed, vectors(WIDTH)),
    Entry("frozen backbone", frozen_backbone, images(2, 16)),
    Entry("ScriptModule, scripted", scripted, vectors(32)),
    Entry("ScriptModule, traced", traced, vectors(32)),
)
