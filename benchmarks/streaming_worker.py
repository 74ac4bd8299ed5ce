"""The process whose memory benchmarks.streaming measures: plans a decoder without weights."""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F
from torch import nn

from ravnest import clusterize
from ravnest.capture.exporting import capture_model


@dataclass(frozen=True)
class Size:
    """How large the decoder is."""

    width: int
    num_layers: int
    vocabulary: int


class Layer(nn.Module):
    """Attention and a feed-forward part, each with a norm before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.num_heads = width // 64

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From hidden states to hidden states of the same shape."""
        heads = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.num_heads, -1))
        q, k, v = heads.permute(2, 0, 3, 1, 4).unbind()
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        hidden: torch.Tensor = x + self.down(F.silu(self.up(self.norm_2(x))))
        return hidden


class Decoder(nn.Module):
    """A decoder-only language model in bf16."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(Layer(size.width) for _ in range(size.num_layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.bfloat16()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """From token ids to logits."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def peak_bytes() -> int:
    """Largest resident memory this process ever had."""
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(size: Size, work: Path, output: Path) -> None:
    """Captures once, notes the memory held, and streams."""
    with torch.device("meta"):
        model = Decoder(size)
    example = (torch.zeros(2, 128, dtype=torch.long),)
    capture_model(model, example)
    gc.collect()
    held_bytes = psutil.Process().memory_info().rss
    started = time.perf_counter()
    clusterize(
        model,
        example,
        node_data=work / "node_data",
        num_clusters=1,
        weights=work / "published",
    )
    result = {
        "seconds": time.perf_counter() - started,
        "held_bytes": held_bytes,
        "peak_bytes": peak_bytes() - held_bytes,
    }
    output.write_text(json.dumps(result))


if __name__ == "__main__":
    main(Size(*json.loads(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]))
