"""Received buffers are used again, never while somebody still looks at them."""

from __future__ import annotations

import ctypes

import pytest

from ravnest.transport.payload import (
    MAX_POOLED_BYTES,
    MAX_SLAB_BYTES,
    MIN_POOLED_BYTES,
    BufferPool,
)


@pytest.mark.parametrize(
    "num_bytes", [0, 1, MIN_POOLED_BYTES - 1, MIN_POOLED_BYTES, 1 << 20, MAX_SLAB_BYTES + 1]
)
def test_a_buffer_has_the_size_asked_for_and_is_writable(num_bytes):
    buffer = BufferPool().take(num_bytes)
    assert buffer.nbytes == num_bytes
    assert not buffer.readonly
    if num_bytes:
        assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % 64 == 0, "as torch's tensors"


def test_a_dropped_buffer_is_used_again():
    pool = BufferPool()
    first = pool.take(1 << 20)
    owner = first.obj
    del first
    assert pool.take((1 << 20) - 5).obj is owner


def test_a_slice_keeps_its_buffer():
    pool = BufferPool()
    part = pool.take(1 << 20)[100:200]
    part[:] = bytes(100)
    pool.take(1 << 20)[:] = b"\xff" * (1 << 20)
    assert bytes(part) == bytes(100)


def test_a_small_message_does_not_hold_a_large_buffer():
    pool = BufferPool()
    large = pool.take(8 << 20).obj
    assert pool.take(1 << 20).obj is not large


def test_the_pool_forgets_what_is_too_much():
    pool = BufferPool()
    held = [pool.take(MAX_SLAB_BYTES) for _ in range(MAX_POOLED_BYTES // MAX_SLAB_BYTES + 1)]
    forgotten = held.pop(0).obj
    assert all(pool.take(MAX_SLAB_BYTES).obj is not forgotten for _ in range(3))
