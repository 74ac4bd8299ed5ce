"""Graph costs summed up to every legal boundary, so that any stage costs two look-ups."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ravnest.capture.costs import GraphCosts
from ravnest.planning.settings import BACKWARD_AND_FORWARD, FLOPS_PER_BYTE_WRITTEN

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Arrays over the M + 1 boundaries: the start of the graph, every legal cut, the end.

    Attributes:
        positions: position in the graph, ascending.
        work: operations of a training step before the boundary, memory traffic included.
        saved_bytes: activation bytes kept for backward by what is before the boundary.
        trained_bytes: bytes of the trainable parameters before it.
        fixed_bytes: bytes of the frozen parameters and buffers before it.
        num_trained: number of trainable parameters before it.
        forward_bytes: activation bytes that cross it; at the start the inputs, at the end 0.
        backward_bytes: gradient bytes that cross it; 0 at both ends.
    """

    positions: Ints
    work: Floats
    saved_bytes: Ints
    trained_bytes: Ints
    fixed_bytes: Ints
    num_trained: Ints
    forward_bytes: Ints
    backward_bytes: Ints

    @property
    def last(self) -> int:
        """Index of the boundary at the end of the graph."""
        return len(self.positions) - 1

    @property
    def max_stages(self) -> int:
        """The most stages a cut can make with a trainable parameter in each; 0 if there is none."""
        count, seen = 0, 0
        for total in self.num_trained.tolist():
            if total > seen:
                count, seen = count + 1, total
        return count

    def thinned(self, num_boundaries: int) -> CostTable:
        """The table with the cheapest cut of each of so many slices of equal work, for a search."""
        if self.last < num_boundaries:
            return self
        slices = np.linspace(0.0, self.work[-1], num_boundaries)[1:]
        owner = np.searchsorted(slices, self.work[1:-1])
        crossing = (self.forward_bytes + self.backward_bytes)[1:-1]
        order = np.lexsort((np.arange(len(owner)), crossing, owner))
        _, first = np.unique(owner[order], return_index=True)
        kept = np.concatenate(([0], np.sort(order[first]) + 1, [self.last]))
        fields = (field.name for field in dataclasses.fields(self))
        return CostTable(**{name: getattr(self, name)[kept] for name in fields})


def cost_table(costs: GraphCosts) -> CostTable:
    """Sums up what `costs` has per position."""
    num = costs.num_positions
    positions = np.array([0, *(cut.position for cut in costs.cuts), num], dtype=np.int64)
    operations = BACKWARD_AND_FORWARD * np.array(costs.forward_flops, dtype=np.float64)
    traffic = FLOPS_PER_BYTE_WRITTEN * np.array(costs.output_bytes, dtype=np.float64)
    trained, fixed, count = (np.zeros(num, dtype=np.int64) for _ in range(3))
    for tensor in costs.stored:
        (trained if tensor.trainable else fixed)[tensor.position] += tensor.num_bytes
        count[tensor.position] += tensor.trainable
    forward = [costs.input_bytes, *(cut.forward_bytes for cut in costs.cuts), 0]
    backward = [0, *(cut.backward_bytes for cut in costs.cuts), 0]

    def before(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        sums = np.zeros(num + 1, dtype=values.dtype)
        np.cumsum(values, out=sums[1:])
        return sums[positions]

    return CostTable(
        positions=positions,
        work=before(operations + traffic),
        saved_bytes=before(np.array(costs.saved_bytes, dtype=np.int64)),
        trained_bytes=before(trained),
        fixed_bytes=before(fixed),
        num_trained=before(count),
        forward_bytes=np.array(forward, dtype=np.int64),
        backward_bytes=np.array(backward, dtype=np.int64),
    )
