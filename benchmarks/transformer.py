"""The transformer block of the small language models that benchmarks train."""

from __future__ import annotations

import torch
from torch.nn import functional


class Block(torch.nn.Module):
    """A block with causal attention, (N, T, width) to the same; norms come first (GPT-2)."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1 = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.norm_2 = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, width = x.shape
        heads = self.qkv(self.norm_1(x)).view(n, t, 3, self.num_heads, width // self.num_heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.down(functional.gelu(self.up(self.norm_2(x))))
