"""The nodes a plan is made for: as configured, changed where that is asked for, in base units."""

from __future__ import annotations

from pathlib import Path

from ravnest.config import NodeConfig, load_node_configs
from ravnest.plan.parts import NodeSpec
from ravnest.planning.overriding import nodes_to_plan_for


def nodes_of(config_file: Path) -> tuple[NodeSpec, ...]:
    """Reads the file; ConfigError with all its faults where it has some."""
    return tuple(_node_spec(config) for config in nodes_to_plan_for(load_node_configs(config_file)))


def _node_spec(config: NodeConfig) -> NodeSpec:
    return NodeSpec(
        node_id=config.node_id,
        address=config.address,
        bind=config.bind,
        memory_bytes=int(config.ram_gb * 1e9),
        bandwidth_bps=config.bandwidth_mbps * 1e6,
        flops=None if config.flops_gflops is None else config.flops_gflops * 1e9,
        latency_s=None if config.latency_ms is None else config.latency_ms * 1e-3,
        device=config.device,
    )
