"""Costs and nodes to a plan: memory, stages, clusters, rings."""
