"""Where a member's own values are read in a round: in its tensors, or in the shadow.

Knows no peer and no order of chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch

from ravnest.averaging.schedule import Chunk
from ravnest.averaging.shadow import Segment

_MIN_BYTES = 64 << 10
"""Of a tensor that is read in place: to look for a smaller one takes as long as to copy it."""


class Sources:
    """The values of every chunk before anything was added to them.

    A float tensor that lies flat in the host's memory, in the dtype of averaging, is read when its
    chunk is weighed or added up, straight into the shadow: one pass over memory, where to copy it
    there first, to change it there and to read it again are two. All else has been loaded into the
    shadow.

    Args:
        buffers: of the shadow.
        in_place: of the tensors that were not loaded, in the order of the shadow; they must not
            change until the all-reduce is over.

    Attributes:
        buffers: as given.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], in_place: Sequence[Segment]) -> None:
        self.buffers = buffers
        self._segments: list[list[Segment]] = [[] for _ in buffers]
        for segment in in_place:
            self._segments[segment.buffer].append(segment)
        self._stops = [[segment.stop for segment in each] for each in self._segments]

    def of(self, chunk: Chunk) -> Iterator[tuple[torch.Tensor, slice]]:
        """A chunk's values in order, and of each piece where in the chunk it lies.

        Pieces are 1-D and together the whole chunk; those of the shadow are the chunk's own memory.
        """
        buffer, segments = self.buffers[chunk.buffer], self._segments[chunk.buffer]
        at, number = chunk.start, bisect_right(self._stops[chunk.buffer], chunk.start)
        while at < chunk.stop:
            segment = segments[number] if number < len(segments) else None
            if segment is None or at < segment.start:
                stop = chunk.stop if segment is None else min(chunk.stop, segment.start)
                values = buffer[at:stop]
            else:
                stop, number = min(chunk.stop, segment.stop), number + 1
                flat = segment.live.detach().view(-1)
                values = flat[at - segment.start : stop - segment.start]
            yield values, slice(at - chunk.start, stop - chunk.start)
            at = stop


def is_read_in_place(segment: Segment) -> bool:
    """Whether the shadow need not have the tensor's values before the all-reduce."""
    live = segment.live
    return (
        segment.anchor is None
        and live.is_floating_point()
        and live.dtype is segment.accumulator
        and live.is_cpu
        and live.is_contiguous()
        and not live.is_neg()
        and live.nbytes >= _MIN_BYTES
    )
