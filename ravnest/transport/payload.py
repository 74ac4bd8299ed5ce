"""Buffers of messages: joining the many of a sender, and memory for the one of a receiver."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator, Sequence

from ravnest.transport.interface import Buffer

# Below it the heap reuses memory by itself. Above it every new buffer is mapped and its pages
# faulted in anew, which takes longer than filling it.
MIN_POOLED_BYTES = 128 << 10
# Larger buffers are mapped for one message only.
MAX_SLAB_BYTES = 128 << 20
# Memory a pool may hold on to: a window of 16 messages of 16 MiB.
MAX_POOLED_BYTES = 256 << 20

_ALIGNMENT = 64  # bytes


def flat_views(buffers: Sequence[Buffer]) -> Iterator[memoryview]:
    """Each buffer as bytes; TypeError when one is not contiguous."""
    for buffer in buffers:
        view = memoryview(buffer)
        # An empty view of more than one dimension cannot be cast; it has no bytes to send.
        yield view.cast("B") if view.nbytes else memoryview(b"")


class BufferPool:
    """Writable buffers that are used again once nobody looks at them any more.

    Whether somebody does is asked of the bytearray itself: it refuses to be resized while any
    view of it, a tensor's say, is alive. So nobody has to give anything back.
    """

    def __init__(self) -> None:
        self._slabs: list[bytearray] = []  # most recently taken first, the likeliest in a cache
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> memoryview:
        """A writable buffer of that size with arbitrary contents.

        Raises:
            MemoryError, OSError: there is not that much memory.
        """
        if num_bytes > MAX_SLAB_BYTES:
            # Mapped without touching it: until the bytes really come, it costs no memory.
            return memoryview(mmap.mmap(-1, num_bytes))
        if num_bytes < MIN_POOLED_BYTES:
            return _aligned(bytearray(num_bytes + _ALIGNMENT), num_bytes)
        with self._lock:
            for slab in self._slabs:
                room = len(slab) - _ALIGNMENT
                if num_bytes <= room <= 2 * num_bytes and _is_idle(slab):
                    break
            else:
                slab = bytearray(num_bytes + _ALIGNMENT)
                self._make_room(num_bytes)
            self._slabs = [slab, *(other for other in self._slabs if other is not slab)]
            # Viewed under the lock, so that no other thread finds it idle.
            return _aligned(slab, num_bytes)

    def _make_room(self, num_bytes: int) -> None:
        """Forgets the least recently taken slabs; one in use then simply is not used again."""
        while self._slabs and sum(map(len, self._slabs)) + num_bytes > MAX_POOLED_BYTES:
            del self._slabs[-1]


def _aligned(slab: bytearray, num_bytes: int) -> memoryview:
    """As many bytes of it, from where values lie as torch's own do.

    What kernels sum up first depends on that, so the last bits of results do.
    """
    start = -ctypes.addressof(ctypes.c_char.from_buffer(slab)) % _ALIGNMENT
    return memoryview(slab)[start : start + num_bytes]


def _is_idle(slab: bytearray) -> bool:
    try:
        last = slab.pop()
    except BufferError:
        return False
    slab.append(last)
    return True


def joined(buffers: Sequence[Buffer]) -> memoryview:
    """A writable copy of all the buffers, one after the other."""
    views = list(flat_views(buffers))
    num_bytes = sum(view.nbytes for view in views)
    copy = _aligned(bytearray(num_bytes + _ALIGNMENT), num_bytes)
    end = 0
    for view in views:
        start, end = end, end + view.nbytes
        copy[start:end] = view
    return copy
