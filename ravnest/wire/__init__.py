"""Tensors to bytes and back: frames and codecs."""
