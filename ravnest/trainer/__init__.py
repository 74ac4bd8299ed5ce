"""Trainer, loaders and sharding, evaluation."""
