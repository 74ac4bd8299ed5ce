"""Transformers and mixtures of experts of torch alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.zoo.entry import (
    BFLOAT16_TOLERANCE,
    NUM_TOKENS,
    Call,
    Entry,
    kept,
    tokens,
)

CONTEXT = 512


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with a padding mask."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, ids: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.embedding(ids), src_key_padding_mask=padding)
        return self.head(x.masked_fill(padding.unsqueeze(-1), 0.0).mean(1))


class Block(nn.Module):
    """Causal attention and a feed-forward network, both over a skip."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(c, 2)
        )
        dropout = 0.1 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """A decoder whose head is its embedding; with targets it returns the loss as well."""

    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(NUM_TOKENS, width), nn.Embedding(CONTEXT, width)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, NUM_TOKENS, bias=False)
        self.head.weight = self.wte.weight

    def forward(
        self, ids: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        length = ids.size(1)
        assert length <= CONTEXT, f"a sequence of {length} is longer than {CONTEXT}"
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(length, device=ids.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


class SparseExperts(nn.Module):
    """Each token goes to its best experts, whose shares have sizes that depend on the values."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.inlet, self.gate = nn.Linear(width, width), nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.inlet(x))
        weights, chosen = torch.softmax(self.gate(x), -1).topk(2, -1)
        mixed = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == index)
            mixed = mixed.index_add(0, rows, expert(x[rows]) * weights[rows, place].unsqueeze(-1))
        return self.head(torch.tanh(mixed))


class DenseExperts(nn.Module):
    """Each token goes to all experts."""

    def __init__(self, width: int = 16, experts: int = 4) -> None:
        super().__init__()
        self.inlet, self.gate = nn.Linear(width, width), nn.Linear(width, experts)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.inlet(x))
        weights = torch.softmax(self.gate(x), -1)
        mixed = torch.stack([expert(x) for expert in self.experts], -2)
        return self.head(torch.tanh((weights.unsqueeze(-1) * mixed).sum(-2)))


def _ids(batch: int, length: int) -> Call:
    return (tokens(batch, length),), {}


def _with_targets(batch: int, length: int) -> Call:
    return (tokens(batch, length),), {"targets": tokens(batch, length)}


def _with_padding(batch: int, length: int) -> Call:
    return (tokens(batch, length), kept(batch, length) == 0), {}


def _vectors(batch: int, _: int) -> Call:
    return (torch.randn(4 * batch, 16),), {}


ENTRIES = (
    Entry("TransformerEncoder with padding mask", Encoder, _with_padding, other_length=16),
    Entry("GPT with tied embedding", Gpt, _ids, other_length=16),
    Entry("GPT with the loss inside", Gpt, _with_targets, other_length=16),
    Entry(
        "GPT in bfloat16",
        lambda: Gpt().to(torch.bfloat16),
        _with_targets,
        other_length=16,
        tolerance=BFLOAT16_TOLERANCE,
    ),
    Entry("mixture of experts, sparse", SparseExperts, _vectors),
    Entry("mixture of experts, dense", DenseExperts, _vectors),
)
