"""Predicted peak memory of a stage, for one stage or for arrays of them at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ravnest.planning.settings import RUNTIME_FOOTPRINT_BYTES, PlanningSettings
from ravnest.planning.table import Bools, CostTable, Ints, SharedTensor

_OWNER_COPIES = 2
"""Of a trainable shared tensor its owner also holds a message of values and one of gradients."""

_REPLICA_COPIES = 4
"""A replica is values, their gradient, and a message of each."""


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """What a stage holds at its peak.

    The tensors it stores: each trainable parameter with its gradient, optimizer states and
    stashed versions; frozen parameters and buffers once; with several clusters all of it once
    more, for averaging works on a copy. The activations of every microbatch in flight at its
    position: what autograd saved, and the stage's input and output. Two messages per direction
    and neighbour, one being filled while the other travels. A replica of a parameter that an
    earlier stage owns, with its gradient, stashed versions and one message each way; its owner has
    one message each way as well. The runtime's own footprint.
    """

    table: CostTable
    settings: PlanningSettings
    is_averaged: bool

    def stage_bytes(self, start: Ints, end: Ints, index: int, num_stages: int) -> Ints:
        """Peak bytes of stages between boundaries, indices into the table that broadcast.

        Args:
            index: position of the stage in its cluster, 0 is the root.
            num_stages: stages of the cluster; num_stages - index microbatches are in flight.
        """
        from_end, from_start = self.parts(index, num_stages)
        peak: Ints = from_end[end] + from_start[start]
        for shared in self.table.shared:
            peak = peak + self._shared_bytes(shared, start, end, index, num_stages)
        return peak

    def exchanged_bytes(self, start: Ints, end: Ints) -> Ints:
        """Bytes that a stage sends per optimizer step for parameters that others use as well.

        A replica sends its gradient; an owner its values, counted once however many hold them.
        """
        sent = np.zeros(np.broadcast_shapes(np.shape(start), np.shape(end)), dtype=np.int64)
        for shared in self.table.shared:
            if shared.trainable:
                owned, is_replica = self._roles(shared, start, end)
                sent += shared.num_bytes * (owned | is_replica)
        return sent

    def _roles(self, shared: SharedTensor, start: Ints, end: Ints) -> tuple[Bools, Bools]:
        """Whether a stage owns a tensor that later stages use, and whether it holds a copy."""
        positions = self.table.positions
        is_used = shared.next_use[start] < positions[end]
        is_first = shared.next_use[start] == shared.next_use[0]
        return is_used & is_first & (shared.last_use >= positions[end]), is_used & ~is_first

    def most_shared_bytes(self, index: int, num_stages: int) -> int:
        """What a stage holds for shared tensors at most, whatever it computes."""
        stashed = self.settings.schedule.stashed_versions(index, num_stages)
        return sum(
            shared.num_bytes * (_REPLICA_COPIES + stashed if shared.trainable else 1)
            for shared in self.table.shared
        )

    def _shared_bytes(
        self, shared: SharedTensor, start: Ints, end: Ints, index: int, num_stages: int
    ) -> Ints:
        owned, is_replica = self._roles(shared, start, end)
        if not shared.trainable:
            return shared.num_bytes * is_replica
        stashed = self.settings.schedule.stashed_versions(index, num_stages)
        num_bytes: Ints = shared.num_bytes * (
            _OWNER_COPIES * owned + (_REPLICA_COPIES + stashed) * is_replica
        )
        return num_bytes

    def parts(self, index: int, num_stages: int) -> tuple[Ints, Ints]:
        """Per boundary what it adds to a stage that ends there, and to one that starts there.

        The peak of a stage is the sum of both, since everything in it but the shared tensors is a
        difference or a border.
        """
        table = self.table
        held = self.held_bytes(index, num_stages)
        at_border = table.forward_bytes * (num_stages - index + 2) + table.backward_bytes * 2
        return at_border + held, at_border - held + RUNTIME_FOOTPRINT_BYTES

    def held_bytes(self, index: int, num_stages: int) -> Ints:
        """What stage `index` would hold inside if it started with the graph; never descends."""
        table, settings = self.table, self.settings
        stashed = settings.schedule.stashed_versions(index, num_stages)
        held: Ints = (
            table.trained_bytes * (2 + settings.optimizer_states + stashed + self.is_averaged)
            + table.fixed_bytes * (1 + self.is_averaged)
            + table.saved_bytes * (num_stages - index)
        )
        return held

    def thinned(self, num_boundaries: int) -> MemoryModel:
        """The same over fewer boundaries, see `CostTable.thinned`."""
        return replace(self, table=self.table.thinned(num_boundaries))

    def whole_model_bytes(self) -> int:
        """Peak bytes of one node that holds everything."""
        return int(self.stage_bytes(np.array(0), np.array(self.table.last), 0, 1))

    def smallest_stage_bytes(self) -> int:
        """The least that any stage needs: one that trains something, last in its cluster."""
        start, end = _shortest_stages(self.table)
        from_end, from_start = self.parts(0, 1)
        return int((from_end[end] + from_start[start]).min())


def _shortest_stages(table: CostTable) -> tuple[Ints, Ints]:
    """For each start the nearest end with a trainable parameter between the two."""
    end = np.searchsorted(table.num_trained, table.num_trained, side="right")
    start = np.flatnonzero(end <= table.last)
    return start, end[start]
