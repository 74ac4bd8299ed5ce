"""Predicted peak memory of a stage, for one stage or for arrays of them at once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from ravnest.plan.parts import NodeSpec
from ravnest.plan.prediction import MemoryBudget
from ravnest.planning.budget.holdings import Holdings, total
from ravnest.planning.budget.sharing import SharedRoles, most_shared_bytes
from ravnest.planning.inputs.settings import ACCELERATOR_FOOTPRINT_BYTES, PlanningSettings
from ravnest.planning.inputs.table import CostTable, Ints


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """What a stage holds at its peak.

    The tensors it stores: each trainable parameter with its gradient, optimizer states and
    stashed versions; frozen parameters and buffers once; with several clusters a copy of all of it
    in the dtype of averaging, which rounds work on and which stays; with an outer optimizer the
    anchors, its states, and what compression dropped; with
    an overlap what was sent. Of every microbatch in flight
    at its position the activations: its input, what autograd saved, and outputs that nothing saved;
    with recomputation the input of all and the rest of one. The temporaries of the most demanding
    moment, be it an operator of either pass or the optimizer's step. Messages: one input more than
    are in flight, a gradient on its way to the stage before, the one being applied and one that
    waits, and outputs where they are not kept anyway. A replica of a parameter that an earlier
    stage owns, with its gradient, stashed versions and one message each way; its owner has one
    message each way as well. The runtime's own footprint.

    Args:
        on_accelerator: the stage computes on one, whose memory is what counts: messages, the copy
            for averaging and the runtime's larger part are in the host's memory then.
    """

    table: CostTable
    settings: PlanningSettings
    is_averaged: bool
    on_accelerator: bool = False

    def on(self, node: NodeSpec) -> MemoryModel:
        """The same for the kind of memory that a node's `memory_bytes` are of."""
        accelerated = node.device is not None and not node.device.startswith("cpu")
        return (
            self
            if accelerated == self.on_accelerator
            else replace(self, on_accelerator=accelerated)
        )

    def stage_bytes(self, start: Ints, end: Ints, index: int, num_stages: int) -> Ints:
        """Peak bytes of stages between boundaries, indices into the table that broadcast.

        Args:
            index: position of the stage in its cluster, 0 is the root.
            num_stages: stages of the cluster; the schedule says what is in flight at each.
        """
        holdings = self._holdings(index, num_stages)
        at_end, at_start = self._borders(holdings)
        peak: Ints = at_end[end] + at_start[start] + holdings.workspace(start, end)
        stashed = self.settings.stashed(index, num_stages)
        for roles in self._roles(start, end):
            peak = peak + total(roles.purposes(stashed))
        return peak

    def budget(self, start: int, end: int, index: int, num_stages: int) -> MemoryBudget:
        """The same in parts, for one stage; they add up to its `stage_bytes`."""
        holdings = self._holdings(index, num_stages)
        parts = {field.name: 0 for field in fields(MemoryBudget)}
        for purpose, held in holdings.inside().items():
            parts[purpose] += int(held[end] - held[start])
        for border, at in ((holdings.at_end(), end), (holdings.at_start(), start)):
            for purpose, added in border.items():
                parts[purpose] += int(added[at])
        i, j = np.array(start), np.array(end)
        stashed = self.settings.stashed(index, num_stages)
        for roles in self._roles(i, j):
            for purpose, shared in roles.purposes(stashed).items():
                parts[purpose] += int(shared)
        parts["workspace"] = int(holdings.workspace(i, j))
        parts["runtime"] = self.runtime_bytes
        return MemoryBudget(**parts)

    @property
    def runtime_bytes(self) -> int:
        """What the process holds of that memory beside its stage."""
        on_host = self.settings.runtime_bytes
        return ACCELERATOR_FOOTPRINT_BYTES if self.on_accelerator else on_host

    def exchanged_bytes(self, start: Ints, end: Ints) -> Ints:
        """Bytes that a stage sends per optimizer step for parameters that others use as well.

        A replica sends its gradient; an owner its values, counted once however many hold them.
        """
        sent = np.zeros(np.broadcast_shapes(np.shape(start), np.shape(end)), dtype=np.int64)
        for roles in self._roles(start, end):
            sent += roles.exchanged_bytes()
        return sent

    def parts(self, index: int, num_stages: int) -> tuple[Ints, Ints]:
        """Per boundary what it adds to a stage that ends there, and to one that starts there.

        No stage needs less than the sum of both, nor more than that and `most_beyond_parts`.
        """
        holdings = self._holdings(index, num_stages)
        at_end, at_start = self._borders(holdings)
        return at_end + holdings.least_workspace(), at_start

    def most_beyond_parts(self, index: int, num_stages: int) -> int:
        """What a stage needs at most beyond its `parts`, whatever it computes."""
        holdings = self._holdings(index, num_stages)
        stashed = self.settings.stashed(index, num_stages)
        shared = (most_shared_bytes(each, stashed) for each in self.table.shared)
        return holdings.most_workspace() + sum(shared)

    def held_bytes(self, index: int, num_stages: int) -> Ints:
        """What stage `index` would hold inside if it started with the graph; never descends."""
        return total(self._holdings(index, num_stages).inside())

    def thinned(self, num_boundaries: int) -> MemoryModel:
        """The same over fewer boundaries, see `CostTable.thinned`."""
        return replace(self, table=self.table.thinned(num_boundaries))

    def whole_model_bytes(self) -> int:
        """Peak bytes of one node that holds everything."""
        return int(self.stage_bytes(np.array(0), np.array(self.table.last), 0, 1))

    def smallest_stage_bytes(self) -> int:
        """The least that any stage needs: one that trains something, last in its cluster."""
        start, end = _shortest_stages(self.table)
        holdings = self._holdings(0, 1)
        at_end, at_start = self._borders(holdings)
        return int((at_end[end] + at_start[start] + holdings.workspace(start, end)).min())

    def _holdings(self, index: int, num_stages: int) -> Holdings:
        return Holdings(
            self.table, self.settings, index, num_stages, self.is_averaged, self.on_accelerator
        )

    def _borders(self, holdings: Holdings) -> tuple[Ints, Ints]:
        """What an end and a start add, the inside of the stage as their difference included."""
        held = total(holdings.inside())
        at_end: Ints = held + total(holdings.at_end())
        at_start: Ints = total(holdings.at_start()) - held + self.runtime_bytes
        return at_end, at_start

    def _roles(self, start: Ints, end: Ints) -> list[SharedRoles]:
        positions = self.table.positions
        return [SharedRoles.of(shared, positions, start, end) for shared in self.table.shared]


def _shortest_stages(table: CostTable) -> tuple[Ints, Ints]:
    """For each start the nearest end with a trainable parameter between the two."""
    end = np.searchsorted(table.num_trained, table.num_trained, side="right")
    start = np.flatnonzero(end <= table.last)
    return start, end[start]
