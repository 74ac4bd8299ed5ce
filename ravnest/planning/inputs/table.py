"""Graph costs summed up to every legal boundary, so that any stage costs two look-ups."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ravnest.capture.costs import GraphCosts, ParameterCost
from ravnest.planning.inputs.ranges import RangeMax
from ravnest.planning.inputs.settings import (
    ACCUMULATION_WORK_PER_BYTE,
    BACKWARD_AND_FORWARD,
    FLOPS_PER_BYTE_WRITTEN,
)

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class SharedTensor:
    """A tensor that several stages may use: the first owns it, the others hold copies.

    Attributes:
        num_bytes: bytes of its values.
        trainable: copies then get gradients, and are kept equal.
        next_use: per boundary the position of the first use after it, the end of the graph when
            there is none.
        last_use: position of the last use.
    """

    num_bytes: int
    trainable: bool
    next_use: Ints
    last_use: int


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
        unsaved_bytes: what a stage that ends there keeps for backward beyond `saved_bytes`: outputs
            that nothing saved, at the end of the graph what the criterion saves.
        received_bytes: what is saved behind it, but is an input of a stage that starts there.
        averaged_bytes: bytes of everything stored before it, in the dtypes of averaging.
        anchor_bytes: those of them that are trainable.
        peaks: activation bytes that live at most, either pass, between a boundary and the next, as
            if the graph were one stage: what is saved before included.
        filling: the same peaks less the trainable bytes up to the position they are at: what a
            backward pass holds that finds no gradients and leaves them behind, but for a constant.
        largest: bytes of the largest trainable parameter between a boundary and the next.
        num_samples: of the example batch.
        shared: tensors that stages may hold copies of.
    """

    positions: Ints
    work: Floats
    saved_bytes: Ints
    trained_bytes: Ints
    fixed_bytes: Ints
    num_trained: Ints
    forward_bytes: Ints
    backward_bytes: Ints
    unsaved_bytes: Ints
    received_bytes: Ints
    averaged_bytes: Ints
    anchor_bytes: Ints
    peaks: RangeMax
    filling: RangeMax
    largest: RangeMax
    num_samples: int
    shared: tuple[SharedTensor, ...] = ()

    @property
    def last(self) -> int:
        """Index of the boundary at the end of the graph."""
        return len(self.positions) - 1

    @property
    def is_wide(self) -> bool:
        """Whether what is stored takes four bytes a number, or more, and not fewer."""
        stored = self.trained_bytes[-1] + self.fixed_bytes[-1]
        return bool(stored >= self.averaged_bytes[-1])

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
        return self.at(np.concatenate(([0], np.sort(order[first]) + 1, [self.last])))

    def near(self, boundaries: Sequence[int], num_boundaries: int) -> CostTable:
        """The table with the boundaries around some of its own, about so many in all."""
        inner = boundaries[1:-1]
        reach = num_boundaries // (2 * max(len(inner), 1))
        kept = {0, self.last}
        for each in inner:
            kept.update(range(max(1, each - reach), min(self.last, each + reach + 1)))
        return self.at(np.array(sorted(kept)))

    def at(self, kept: Ints) -> CostTable:
        """The table at some of its boundaries, the first and the last among them."""
        fields = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        thin: dict[str, Any] = {
            name: each[kept] for name, each in fields.items() if isinstance(each, np.ndarray)
        }
        return dataclasses.replace(
            self,
            **thin,
            peaks=self.peaks.joined(kept[:-1]),
            filling=self.filling.joined(kept[:-1]),
            largest=self.largest.joined(kept[:-1]),
            shared=tuple(
                dataclasses.replace(each, next_use=each.next_use[kept]) for each in self.shared
            ),
        )


def cost_table(costs: GraphCosts) -> CostTable:
    """Sums up what `costs` has per position."""
    num = costs.num_positions
    positions = np.array([0, *(cut.position for cut in costs.cuts), num], dtype=np.int64)
    operations = BACKWARD_AND_FORWARD * np.array(costs.forward_flops, dtype=np.float64)
    traffic = FLOPS_PER_BYTE_WRITTEN * np.array(costs.output_bytes, dtype=np.float64)
    trained, fixed, count, averaged, anchor, largest = (
        np.zeros(num, dtype=np.int64) for _ in range(6)
    )
    for tensor in costs.stored:
        (trained if tensor.trainable else fixed)[tensor.position] += tensor.num_bytes
        count[tensor.position] += tensor.trainable
        averaged[tensor.position] += tensor.shadow_bytes
        if tensor.trainable:
            anchor[tensor.position] += tensor.shadow_bytes
            largest[tensor.position] = max(largest[tensor.position], tensor.num_bytes)
    saved = np.array(costs.saved_bytes, dtype=np.int64)
    peaks = np.array(costs.peak_bytes or np.cumsum(saved), dtype=np.int64)
    forward = [costs.input_bytes, *(cut.forward_bytes for cut in costs.cuts), 0]
    backward = [0, *(cut.backward_bytes for cut in costs.cuts), 0]
    unsaved = [0, *(cut.unsaved_bytes for cut in costs.cuts), costs.criterion_bytes]
    received = [0, *(cut.received_bytes for cut in costs.cuts), 0]

    def before(values: npt.NDArray[_Number]) -> npt.NDArray[_Number]:
        sums = np.zeros(num + 1, dtype=values.dtype)
        np.cumsum(values, out=sums[1:])
        return sums[positions]

    return CostTable(
        positions=positions,
        work=before(operations + traffic + ACCUMULATION_WORK_PER_BYTE * trained),
        saved_bytes=before(saved),
        trained_bytes=before(trained),
        fixed_bytes=before(fixed),
        num_trained=before(count),
        forward_bytes=np.array(forward, dtype=np.int64),
        backward_bytes=np.array(backward, dtype=np.int64),
        unsaved_bytes=np.array(unsaved, dtype=np.int64),
        received_bytes=np.array(received, dtype=np.int64),
        averaged_bytes=before(averaged),
        anchor_bytes=before(anchor),
        peaks=RangeMax(peaks).joined(positions[:-1]),
        filling=RangeMax(peaks - np.cumsum(trained)).joined(positions[:-1]),
        largest=RangeMax(largest).joined(positions[:-1]),
        num_samples=costs.num_samples,
        shared=tuple(_shared(costs.stored, positions)),
    )


def _shared(stored: Sequence[ParameterCost], positions: Ints) -> Iterator[SharedTensor]:
    """Shared tensors, those with uses between the same boundaries as one."""
    together: dict[tuple[bool, bytes], SharedTensor] = {}
    for tensor in stored:
        if not tensor.uses:
            continue
        # Only between which boundaries a use lies counts; so it may stand at the first of them.
        uses = positions[np.searchsorted(positions, tensor.uses, side="right") - 1]
        following = np.append(uses, positions[-1])
        next_use = following[np.searchsorted(uses, positions)]
        key = (tensor.trainable, next_use.tobytes())
        known = together.get(key)
        num_bytes = tensor.num_bytes + (0 if known is None else known.num_bytes)
        together[key] = SharedTensor(num_bytes, tensor.trainable, next_use, int(uses[-1]))
    yield from together.values()
