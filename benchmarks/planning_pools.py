"""Models and pools of nodes for the benchmark of planning, drawn by seed, as unlike as can be."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.plan.parts import NodeSpec

_FP32 = 4
_GPT_SAVED_PER_TOKEN = 34  # activations of a block kept for backward, in units of its width
_GPT_WRITTEN_PER_TOKEN = 16
_RAM_GB = (2, 4, 8, 8, 12, 16, 16, 24, 32, 64)
_SPEED_FLOPS = (5e10, 1e12)  # a factor of 20
_BANDWIDTH_BPS = (10e6, 1000e6)
_LATENCY_S = (0.001, 0.1)


def gpt(
    layers: int, width: int, *, samples: int, tokens: int = 512, vocabulary: int = 50257
) -> GraphCosts:
    """A decoder: embedding, blocks, and a head of its own weights; cut between any two of them.

    Work and sizes by the usual counts: 24 width^2 operations per token and block, and 4 width per
    token and token before it.
    """
    rows = samples * tokens
    block_flops = 24.0 * width**2 * rows + 4.0 * tokens * rows * width
    flops = [0.0, *[block_flops] * layers, 2.0 * width * vocabulary * rows]
    saved = [0, *[_GPT_SAVED_PER_TOKEN * rows * width * _FP32] * layers, rows * vocabulary * _FP32]
    written = [
        rows * width * _FP32,
        *[_GPT_WRITTEN_PER_TOKEN * rows * width * _FP32] * layers,
        rows * vocabulary * _FP32,
    ]
    sizes = [vocabulary * width, *[12 * width**2] * layers, vocabulary * width]
    crossing = [rows * width * _FP32] * (layers + 1)
    return _chain(flops, saved, written, sizes, crossing, rows * 8, samples)


def cnn(samples: int) -> GraphCosts:
    """A residual network for images: early blocks large in values, late ones in weights."""
    flops, saved, written, sizes, crossing = [], [], [], [], []
    for stage, (blocks, channels, side) in enumerate(
        ((3, 256, 56), (8, 512, 28), (23, 1024, 14), (3, 2048, 7))
    ):
        inner = channels // 4
        weights = inner * channels * 2 + inner * inner * 9
        values = samples * channels * side * side
        for _ in range(blocks):
            flops.append(2.0 * weights * samples * side * side)
            saved.append(3 * values * _FP32 // 2)
            written.append(3 * values * _FP32 // 2)
            sizes.append(weights)
            crossing.append(values * _FP32)
        if stage == 3:
            crossing.pop()
    return _chain(flops, saved, written, sizes, crossing, samples * 3 * 224 * 224 * _FP32, samples)


def _chain(
    flops: Sequence[float],
    saved: Sequence[int],
    written: Sequence[int],
    sizes: Sequence[int],
    crossing: Sequence[int],
    input_bytes: int,
    samples: int,
) -> GraphCosts:
    stored = tuple(
        ParameterCost(f"part{i}.weight", size * _FP32, True, True, i)
        for i, size in enumerate(sizes)
    )
    cuts = tuple(Cut(i + 1, num_bytes, num_bytes) for i, num_bytes in enumerate(crossing))
    return GraphCosts(
        forward_flops=tuple(flops),
        saved_bytes=tuple(saved),
        output_bytes=tuple(written),
        stored=stored,
        cuts=cuts,
        input_bytes=input_bytes,
        num_samples=samples,
    )


def pool(number: int, seed: int) -> list[NodeSpec]:
    """Nodes of which nothing goes with anything else.

    Memory of 2 to 64 GB, of which nine tenths are offered; speed over a factor of 20, links of 10
    to 1,000 Mbit/s and delays of 1 to 100 ms, all three even on a logarithmic scale.
    """
    draw = random.Random(seed)
    return [
        NodeSpec(
            node_id=index,
            address=f"192.0.2.1:{8000 + index}",
            bind=f"0.0.0.0:{8000 + index}",
            memory_bytes=int(0.9e9 * draw.choice(_RAM_GB)),
            bandwidth_bps=_between(draw, _BANDWIDTH_BPS),
            flops=_between(draw, _SPEED_FLOPS),
            latency_s=_between(draw, _LATENCY_S),
        )
        for index in range(number)
    ]


def _between(draw: random.Random, ends: tuple[float, float]) -> float:
    return math.exp(draw.uniform(math.log(ends[0]), math.log(ends[1])))
