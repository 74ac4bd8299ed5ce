"""Synchronous training over stages against training in one process."""
