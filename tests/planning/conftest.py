"""Graph costs and nodes made by hand."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.plan.parts import NodeSpec


def make_costs(num_positions: int, seed: int = 0, *, scale: int = 1_000_000) -> GraphCosts:
    """A chain with a parameter at every third position and a legal cut before every other one."""
    draw = random.Random(seed)
    cuts = range(1, num_positions, 2)
    return GraphCosts(
        forward_flops=tuple(draw.uniform(0, 1000.0 * scale) for _ in range(num_positions)),
        saved_bytes=tuple(draw.randrange(scale) for _ in range(num_positions)),
        output_bytes=tuple(draw.randrange(scale) for _ in range(num_positions)),
        stored=tuple(
            ParameterCost(f"layer{i}.weight", draw.randrange(1, scale), True, True, i)
            for i in range(0, num_positions, 3)
        ),
        cuts=tuple(Cut(i, draw.randrange(1, scale), draw.randrange(scale)) for i in cuts),
        input_bytes=scale,
    )


def make_node(
    node_id: int, *, gigabytes: float = 8, mbps: float = 100, gflops: float | None = None
) -> NodeSpec:
    address = f"203.0.113.5:{8000 + node_id}"
    flops = None if gflops is None else gflops * 1e9
    return NodeSpec(node_id, address, address, int(gigabytes * 1e9), mbps * 1e6, flops=flops)


@pytest.fixture(scope="session")
def costs_of() -> Callable[..., GraphCosts]:
    return make_costs


@pytest.fixture(scope="session")
def node_of() -> Callable[..., NodeSpec]:
    return make_node
