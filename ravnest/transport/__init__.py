"""Bytes between peers: in memory, over gRPC."""
