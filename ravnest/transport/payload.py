"""Buffers of messages: joining the many of a sender into the one of a receiver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ravnest.transport.interface import Buffer


def flat_views(buffers: Sequence[Buffer]) -> Iterator[memoryview]:
    """Each buffer as bytes; TypeError when one is not contiguous."""
    for buffer in buffers:
        view = memoryview(buffer)
        # An empty view of more than one dimension cannot be cast; it has no bytes to send.
        yield view.cast("B") if view.nbytes else memoryview(b"")


def allocate(num_bytes: int) -> memoryview:
    """A writable buffer of that size."""
    return memoryview(bytearray(num_bytes))


def joined(buffers: Sequence[Buffer]) -> memoryview:
    """A writable copy of all the buffers, one after the other."""
    views = list(flat_views(buffers))
    whole = allocate(sum(view.nbytes for view in views))
    offset = 0
    for view in views:
        whole[offset : offset + view.nbytes] = view
        offset += view.nbytes
    return whole
