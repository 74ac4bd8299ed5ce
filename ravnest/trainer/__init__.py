"""Trainer, loaders dealt out to clusters, and how batches become inputs."""
