"""What one position of a pipeline holds, purpose by purpose, as sums over a table of costs.

The keys are fields of `MemoryBudget`. A stage between two boundaries holds the difference of
`inside` between them, `at_end` of the later and `at_start` of the earlier one, and the temporaries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import CostTable, Ints

Purposes = dict[str, Ints]

RING_BYTES = 32 << 20
"""Messages of an averaging round that a node holds at most: a window of chunks, each way."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """Of stage `index` of `num_stages`, for every boundary at once.

    Args:
        is_averaged: there are several clusters.
        on_accelerator: what counts is an accelerator's memory; messages and the copy for averaging
            are in the host's.
    """

    table: CostTable
    settings: PlanningSettings
    index: int
    num_stages: int
    is_averaged: bool
    on_accelerator: bool

    @property
    def in_flight(self) -> int:
        """Microbatches whose inputs are held."""
        return self.settings.in_flight(self.index, self.num_stages)

    @property
    def kept(self) -> int:
        """Microbatches of which all that backward needs is held."""
        return self.settings.kept(self.index, self.num_stages)

    @property
    def behind(self) -> int:
        """Microbatches whose weights await their gradients: twice what the others hold.

        Beside its graph such a microbatch has a gradient for every use of a weight, together 0.7
        (transformers) to 1.0 (convolutions, perceptrons) of the bytes that the graph saved.
        """
        return self.settings.behind(self.index, self.num_stages)

    @property
    def stashed(self) -> int:
        """Older weight versions beside a whole set of gradients."""
        return self.settings.lasting(self.index, self.num_stages)

    @property
    def _passing(self) -> int:
        """Older weight versions that are gone before the gradients are whole."""
        return self.settings.stashed(self.index, self.num_stages) - self.stashed

    def inside(self) -> Purposes:
        """Bytes of everything before a boundary; none ever descends."""
        table, optimizer = self.table, self.settings.optimizer
        is_shadowed = self.is_averaged and not self.on_accelerator
        return {
            "parameters": table.trained_bytes + table.fixed_bytes,
            "gradients": table.trained_bytes,
            "optimizer": _scaled(table.trained_bytes, optimizer.state_bytes)
            + self.settings.averages(self.index, self.num_stages) * table.trained_bytes
            + optimizer.tensor_bytes * table.num_trained,
            "stashed": self.stashed * table.trained_bytes,
            "averaging": int(is_shadowed) * self._round_bytes(),
            "activations": (self.kept + self.behind) * table.saved_bytes,
        }

    def _round_bytes(self) -> Ints:
        """What rounds work on and keep, of everything before a boundary."""
        table, settings = self.table, self.settings
        num_copies = 2 if settings.rounds_overlap else 1
        return num_copies * table.averaged_bytes + _scaled(
            table.anchor_bytes, settings.kept_for_rounds
        )

    def at_end(self) -> Purposes:
        """What the end of a stage adds.

        The gradient that is being applied, one that waits where several microbatches are in flight,
        and outputs on their way where the microbatch does not hold them anyway.
        """
        table, settings = self.table, self.settings
        num_gradients, sent = 1, np.zeros_like(table.forward_bytes)
        if settings.recomputes(self.index, self.num_stages):
            sent = sent + table.forward_bytes
        if not self.on_accelerator:
            num_gradients += self.in_flight > 1
            if settings.activation_ratio != 1.0:
                sent = sent + _scaled(table.forward_bytes, settings.activation_ratio)
        return {
            "activations": self.kept * table.unsaved_bytes,
            "communication": num_gradients * table.backward_bytes + sent,
        }

    def at_start(self) -> Purposes:
        """What the start of a stage adds: inputs, those that wait, a gradient being sent.

        What waits is decoded already.
        """
        table, settings = self.table, self.settings
        messages = table.backward_bytes
        if not self.on_accelerator:
            waiting = settings.waiting(self.index, self.num_stages)
            messages = messages + waiting * table.forward_bytes
            if settings.gradient_ratio != 1.0:
                messages = messages + _scaled(table.backward_bytes, settings.gradient_ratio)
            messages = messages + int(self.is_averaged) * RING_BYTES
        return {
            "activations": self.in_flight * table.forward_bytes - self.kept * table.received_bytes,
            "communication": messages,
        }

    def workspace(self, start: Ints, end: Ints) -> Ints:
        """Temporaries at the peak, of stages between boundaries that broadcast.

        Those of an operator, forward or backward, beside whole gradients. Or more, where another
        moment needs more: the optimizer's step, when activations are gone; or the first backward
        pass after it. Both hold weight versions that later ones do not, the latter no gradients
        at first.
        """
        table = self.table
        trained = table.trained_bytes[end] - table.trained_bytes[start]
        running: Ints = table.peaks.over(start, end) - table.saved_bytes[end]
        stepping = self._step_bytes(start, end) - self._gone_at_step(start, end)
        most = np.maximum(running, stepping + self._passing * trained)
        if self._passing:
            filling = table.filling.over(start, end) + table.trained_bytes[end]
            first = filling - table.saved_bytes[end] + (self._passing - 1) * trained
            most = np.maximum(most, first)
        bounded: Ints = np.maximum(most, 0)
        return bounded

    def least_workspace(self) -> Ints:
        """By boundary the least that a stage which ends there has of it."""
        last = np.maximum(np.arange(self.table.last + 1) - 1, 0)
        least: Ints = np.maximum(self.table.peaks.values[last] - self.table.saved_bytes, 0)
        least[0] = 0
        return least

    def most_workspace(self) -> int:
        """The most that any stage has of it."""
        table = self.table
        passing = int((table.peaks.values - table.saved_bytes[:-1]).max())
        whole = int(self._step_bytes(np.array(0), np.array(table.last)))
        # In the first backward pass after a step each gradient stands in for one that is whole.
        return max(passing, whole) + self._passing * int(table.trained_bytes[-1])

    def _step_bytes(self, start: Ints, end: Ints) -> Ints:
        trained: Ints = self.table.trained_bytes[end] - self.table.trained_bytes[start]
        needed = self._optimizer_step_bytes(trained, start, end)
        if not self.settings.compensates(self.index, self.num_stages):
            return needed
        # The weights of before the step, which its changes are told by, are a stashed version.
        # Those of 16 bits are computed in 32, one by one, when the optimizer's own are gone.
        computed: Ints = 2 * self.table.largest.over(start, end)
        return np.maximum(needed, computed)

    def _optimizer_step_bytes(self, trained: Ints, start: Ints, end: Ints) -> Ints:
        table, optimizer = self.table, self.settings.optimizer
        if self.on_accelerator:
            return _scaled(trained, optimizer.accelerator_step_bytes)
        if optimizer.joint_step_bytes:
            return _scaled(trained, optimizer.joint_step_bytes)
        return _scaled(table.largest.over(start, end), optimizer.step_bytes)

    def _gone_at_step(self, start: Ints, end: Ints) -> Ints:
        """Activation bytes of the peak that no step finds there."""
        table, settings = self.table, self.settings
        num_left = settings.in_flight_at_step(self.index, self.num_stages)
        kept_left = 0 if settings.recomputes(self.index, self.num_stages) else num_left
        kept = table.saved_bytes[end] + table.unsaved_bytes[end]
        kept = kept - table.saved_bytes[start] - table.received_bytes[start]
        inputs = table.forward_bytes[start]
        gone: Ints = (self.kept - kept_left) * kept + (self.in_flight - num_left) * inputs
        return gone


def _scaled(num_bytes: Ints, factor: float) -> Ints:
    """Rounded to whole bytes."""
    scaled: Ints = np.rint(num_bytes * factor).astype(np.int64)
    return scaled


def total(purposes: Purposes) -> Ints:
    """All purposes together."""
    together: Ints = np.add.reduce(list(purposes.values()))
    return together
