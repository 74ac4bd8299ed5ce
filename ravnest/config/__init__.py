"""What people write: node_configs.json and settings."""
