"""Predicted beside measured peak memory of real providers."""
