"""What a machine and its links can do, measured for node_configs.json."""
