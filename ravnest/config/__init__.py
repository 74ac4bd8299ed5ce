"""What people write: node_configs.json and settings."""

from ravnest.config.nodes import NodeConfig, load_node_configs

__all__ = ["NodeConfig", "load_node_configs"]
