"""Small models that each have something a split can get wrong, with calls of two batch sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from ravnest.capture.exporting import CapturedModel, capture_model

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = [
            m for _ in range(3) for m in (nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Dropout(0.2))
        ]
        self.net = nn.Sequential(*blocks, nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.fc = nn.Dropout2d(0.2), nn.Linear(8 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.b1(self.c1(x)), inplace=True), 2)
        x = self.drop(F.relu(self.b2(self.c2(x))))
        x = F.adaptive_avg_pool2d(x, 4)
        x = F.dropout(x.view(x.size(0), -1), 0.3, training=self.training)
        return self.fc(x)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = F.relu_(self.stem(x))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            out = norm(conv(x))
            out += x
            x = F.relu_(out)
        x = x + first  # over every block in between
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.d1, self.d2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
        self.mid = nn.Conv2d(8, 8, 3, padding=1)
        self.u2, self.u1 = nn.Conv2d(16, 4, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.relu(self.d1(x))
        b = F.relu(self.norm(self.d2(F.max_pool2d(a, 2))))
        m = F.relu(self.mid(F.max_pool2d(b, 2)))
        up = F.relu(self.u2(torch.cat([F.interpolate(m, scale_factor=2), b], 1)))
        return self.u1(torch.cat([F.interpolate(up, scale_factor=2), a], 1))


class NormTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8, affine=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.a(x)))
        return self.out(torch.tanh(self.norm(self.b(x))))


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("ema", torch.zeros(8))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.full((8,), 1.5), persistent=False)
        self.register_buffer("idle", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x)) * self.scale
        if self.training:
            self.ema.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
            self.count += 1
        h = torch.tanh(self.b(h)) - self.ema
        return self.out(h * self.scale)


class NoGradEma(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("ema", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        with torch.no_grad():
            if self.training:
                self.ema.lerp_(h.mean(0), 0.1)
            gate = torch.sigmoid(h)
        return self.out(h * gate + self.ema)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for y in self.qkv(x).split(c, 2)
        )
        p = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(b, t, c))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int = 40, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.blocks = nn.ModuleList(Attention(width, 4) for _ in range(layers))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor | None = None) -> Any:
        _, t = ids.shape
        assert t <= 32
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(t, device=ids.device)))
        for norm, block, mlp in zip(self.norms, self.blocks, self.mlps, strict=True):
            x = x + self.drop(block(norm(x)))
            x = x + mlp(x)
        logits = self.head(x)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class DictInOut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, batch: dict[str, Any], scale: float = 2.0) -> dict[str, Any]:
        h = F.gelu(self.a(batch["x"])) * scale
        zeros = torch.zeros_like(h)  # crosses cuts and wants no gradient
        g = F.gelu(self.b(h) + batch["more"][0])
        return {"logits": self.out(g + zeros), "hidden": [h, g], "aux": None, "rows": h.size(0)}


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.a = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.rnn, self.out = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.a(self.emb(ids)).masked_fill(mask.unsqueeze(-1), 0.0)
        y, (h, _) = self.rnn(x)
        values, indices = y.topk(2, -1)
        return self.out(y), h, ids, values.sum(-1), indices, y.argmax(-1)


class Views(nn.Module):
    """Writes through a view: torn apart it computes something else without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        h = self.a(x) * 1.0
        v = h[:, :4]
        gate = torch.sigmoid(self.b(h.detach().clone()))
        v.mul_(gate)
        return self.out(h) + x[:, :3]


class ModesDiffer(nn.Module):
    """Its eval graph uses parameters in another order and one that training never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.only_eval, self.unused = nn.Linear(8, 8), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return self.only_eval(torch.tanh(self.c(torch.tanh(self.a(x) + self.b(x)))))


def frozen_layers() -> nn.Module:
    model = nn.Sequential(
        nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)
    )
    model[0].requires_grad_(False)
    model[1].eval()
    model[3].weight.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Case:
    """A model and how to call it: `call(batch)` gives args and kwargs."""

    make: Callable[[], nn.Module]
    call: Callable[[int], Call]


def _ids(batch: int, length: int = 6, high: int = 20) -> torch.Tensor:
    return torch.randint(0, high, (batch, length))


def _image(channels: int, size: int) -> Callable[[int], Call]:
    return lambda batch: ((torch.randn(batch, channels, size, size),), {})


def _vector(batch: int) -> Call:
    return (torch.randn(batch, 8),), {}


def _mask(batch: int) -> torch.Tensor:
    return torch.arange(6).expand(batch, 6) > 4


def spectral() -> nn.Module:
    return nn.Sequential(spectral_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 3))


class Rotary(nn.Module):
    """Causal and padding mask, rotary tables and a distance that a buffer holds, in each layer."""

    frequencies: torch.Tensor
    slopes: torch.Tensor

    def __init__(self, width: int = 8, layers: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        frequencies = 1.0 / 100 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("slopes", torch.tensor([0.25]))

    def forward(self, ids: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        angles = place[:, None].float() @ self.frequencies[None]
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        visible = (place[None] <= place[:, None]) & padding.bool()[:, None]
        distance = (place[:, None] - place[None]).abs() * self.slopes
        hidden = self.embedding(ids)
        for layer in self.layers:
            q, k, v = layer(hidden).chunk(3, -1)
            q, k = (x * cos + x.roll(4, -1) * sin for x in (q, k))
            scores = (q @ k.transpose(1, 2) - distance).masked_fill(~visible, -1e9)
            hidden = hidden + torch.softmax(scores, -1) @ v
        return hidden


@dataclass
class TwoOutputs:
    """A nested output that is neither tuple nor dict."""

    hidden: torch.Tensor
    result: torch.Tensor


class RecordOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> TwoOutputs:
        with torch.autocast("cpu", enabled=False):
            hidden = self.a(x)
        return TwoOutputs(hidden, self.b(torch.tanh(hidden)))


CASES: dict[str, Case] = {
    "mlp": Case(Mlp, lambda batch: ((torch.randn(batch, 16),), {})),
    "cnn": Case(Cnn, _image(3, 16)),
    "residual": Case(Residual, _image(3, 8)),
    "unet": Case(UNet, _image(2, 16)),
    "norm_twice": Case(NormTwice, _vector),
    "buffers": Case(Buffers, _vector),
    "no_grad_ema": Case(NoGradEma, _vector),
    "gpt": Case(Gpt, lambda b: ((_ids(b, high=40),), {"targets": _ids(b, high=40)})),
    "frozen": Case(frozen_layers, _vector),
    "dict": Case(
        DictInOut,
        lambda b: (({"x": torch.randn(b, 8), "more": [torch.randn(b, 8)]},), {"scale": 0.5}),
    ),
    "several": Case(Several, lambda b: ((_ids(b),), {"mask": _mask(b)})),
    "views": Case(Views, _vector),
    "spectral": Case(spectral, _vector),
    "record": Case(RecordOutput, _vector),
    "encoder": Case(
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 32), 2, enable_nested_tensor=False
        ),
        lambda b: ((torch.randn(6, b, 16),), {}),
    ),
    "rotary": Case(
        Rotary, lambda b: ((_ids(b, 24),), {"padding": torch.arange(24).expand(b, 24) < 20})
    ),
    "modes_differ": Case(ModesDiffer, _vector),
}


def build(name: str, seed: int = 0) -> nn.Module:
    """A model of the zoo with repeatable weights."""
    torch.manual_seed(seed)
    return CASES[name].make()


def call(name: str, batch: int = 4, seed: int = 1) -> Call:
    """A repeatable call."""
    torch.manual_seed(seed)
    return CASES[name].call(batch)


@functools.cache
def captured(name: str) -> CapturedModel:
    """The captured model of a case; shared between tests, none of which changes it."""
    args, kwargs = call(name)
    return capture_model(build(name), args, kwargs)
