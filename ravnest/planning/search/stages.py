"""Cuts a graph into stages for nodes in a given order: an exact dynamic programme over legal cuts.

The bottleneck programme of PipeDream (Narayanan et al., SOSP 2019, section 3.1), for unequal
nodes in a fixed order and with memory as a hard limit. A second pass decides between the cuts with
the same slowest stage: the least total time, then the fewest bytes over the cuts. Two passes,
because the best way to a boundary by (slowest, total) need not be part of the best whole, while it
is by total alone once stages slower than the optimum are forbidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import DEFAULT_FLOPS
from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.search.pace import rate_of

_BLOCK = 128  # boundaries per block: a few arrays of this by 2,500 stay in the processor's cache
_COARSE = 128  # boundaries of the table that gives a first bound
_NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Cutting:
    """A graph cut into one stage per node.

    Attributes:
        cuts: positions in the graph from 0 to its end; stage k has `cuts[k]` to `cuts[k + 1]`.
        step_times_s: predicted seconds per microbatch of each stage.
        needed_bytes: predicted peak memory of each stage.
        cut_bytes: bytes that stages send each other per microbatch and optimizer step.
    """

    cuts: tuple[int, ...]
    step_times_s: tuple[float, ...]
    needed_bytes: tuple[int, ...]
    cut_bytes: int

    @property
    def slowest_s(self) -> float:
        """Seconds per microbatch of the whole pipeline."""
        return max(self.step_times_s)

    @property
    def rank(self) -> tuple[float, float, int]:
        """What a better cutting has less of, in order of importance."""
        return self.slowest_s, sum(self.step_times_s), self.cut_bytes


class StageTimes:
    """Seconds per microbatch of every possible stage of some nodes in order.

    A stage computes while it sends and receives, so its time is the largest of the three. It sends
    its activations to the next node and its gradients to the one before and receives likewise, each
    at the rate of its own link; what keeps parameters equal that several stages use, after every
    microbatch, as with an `update_frequency` of 1.
    """

    def __init__(self, memory: MemoryModel, nodes: Sequence[NodeSpec]) -> None:
        self.memory = memory
        self._memories = [memory.on(node) for node in nodes]
        self.nodes = nodes
        self.num_stages = len(nodes)
        self._flops = [node.flops or DEFAULT_FLOPS for node in nodes]
        self._rates = [rate_of(node) for node in nodes]
        self._limits = [min(node.memory_bytes, _NO_LIMIT) for node in nodes]

    def seconds(self, index: int, start: Ints, end: Ints) -> Floats:
        """Time of stage `index` between boundaries, indices that broadcast; fits or not."""
        table = self.memory.table
        computing = (table.work[end] - table.work[start]) / self._flops[index]
        is_root, is_leaf = index == 0, index == self.num_stages - 1
        there, back = (not is_leaf) * table.forward_bytes, (not is_root) * table.backward_bytes
        sent = there[end] + back[start]
        received = (not is_root) * table.forward_bytes[start]
        received = received + (not is_leaf) * table.backward_bytes[end]
        passing = np.maximum(sent, received)
        if table.shared:
            passing = passing + self.memory.exchanged_bytes(start, end)
        slower: Floats = np.maximum(computing, passing / self._rates[index])
        return slower

    def costs(self, index: int, start: Ints, end: Ints) -> Floats:
        """As `seconds`, infinite where the stage does not fit or trains nothing."""
        table = self.memory.table
        needed = self._memories[index].stage_bytes(start, end, index, self.num_stages)
        is_legal = table.num_trained[end] > table.num_trained[start]
        is_legal &= needed <= self._limits[index]
        is_legal &= self.num_stages <= self.memory.settings.most_stages
        return np.where(is_legal, self.seconds(index, start, end), np.inf)

    def first_start(self, index: int, end: int, limit: float) -> int:
        """The first boundary from which stage `index` to `end` can fit and be within `limit`."""
        work = self.memory.table.work
        held = self._memories[index].held_bytes(index, self.num_stages)
        slack = limit * self._flops[index] * (1 + 1e-9)
        in_time = np.searchsorted(work, work[end] - slack)
        in_memory = np.searchsorted(held, held[end] - self._limits[index])
        return min(int(max(in_time, in_memory)), end - 1)

    def can_fit(self) -> bool:
        """Whether some cutting keeps every stage within its node's memory; cheap to ask.

        With temporaries and shared tensors a stage is no sum of what its two ends add: only where
        no bound decides it takes a search.
        """
        if self.num_stages > self.memory.settings.most_stages or not self._fits(0):
            return False
        return self._fits(1) or bool(np.isfinite(slowest_stage(self)))

    def _fits(self, factor: int) -> bool:
        """As `can_fit`, if every stage held no more (0) or the most (1) beyond its two ends."""
        trained = self.memory.table.num_trained
        # The last boundary from which a stage that ends here still has something to train.
        latest = np.searchsorted(trained, trained) - 1
        is_reached = np.arange(len(trained)) == 0
        for index, limit in enumerate(self._limits):
            memory = self._memories[index]
            from_end, from_start = memory.parts(index, self.num_stages)
            from_end = from_end + factor * memory.most_beyond_parts(index, self.num_stages)
            least = np.minimum.accumulate(np.where(is_reached, from_start, _NO_LIMIT // 2))
            is_reached = (latest >= 0) & (from_end + least[latest] <= limit)
        return bool(is_reached[-1])

    def cutting(self, boundaries: Sequence[int]) -> Cutting:
        """The cutting along boundaries of the table, first and last included."""
        table = self.memory.table
        start, end = np.array(boundaries[:-1]), np.array(boundaries[1:])
        stages = [(k, start[k], end[k]) for k in range(self.num_stages)]
        inner = start[1:]
        return Cutting(
            cuts=tuple(table.positions[list(boundaries)].tolist()),
            step_times_s=tuple(float(self.seconds(*stage)) for stage in stages),
            needed_bytes=tuple(
                int(self._memories[k].stage_bytes(i, j, k, self.num_stages)) for k, i, j in stages
            ),
            cut_bytes=int((table.forward_bytes[inner] + table.backward_bytes[inner]).sum())
            + sum(int(self.memory.exchanged_bytes(i, j)) for _, i, j in stages),
        )


class MemoryShares(StageTimes):
    """The same programme for the question how near nodes come to fitting: needed over available."""

    def costs(self, index: int, start: Ints, end: Ints) -> Floats:
        """Needed over available bytes, infinite where the stage trains nothing."""
        table = self.memory.table
        needed = self._memories[index].stage_bytes(start, end, index, self.num_stages)
        is_legal = table.num_trained[end] > table.num_trained[start]
        return np.where(is_legal, needed / max(self._limits[index], 1), np.inf)

    def first_start(self, index: int, end: int, limit: float) -> int:
        """No boundary is ruled out: a share says nothing about work."""
        return 0


def cut_into_stages(times: StageTimes) -> Cutting | None:
    """The cutting with the fastest slowest stage, one stage per node, or None when none fits.

    Ties go to the least total time, then to the fewest bytes over the cuts, then to earlier cuts.
    """
    bound = np.inf
    if times.memory.table.last > _COARSE:
        # The best along fewer cuts bounds the best along all, and rules most stages out.
        bound = slowest_stage(type(times)(times.memory.thinned(_COARSE), times.nodes))
    slowest = slowest_stage(times, bound)
    if not np.isfinite(slowest):
        return None
    return times.cutting(_least_total(times, slowest))


def slowest_stage(times: StageTimes, at_most: float = np.inf) -> float:
    """The time of the slowest stage in the best cutting.

    Args:
        at_most: no slower cutting is of interest.

    Returns:
        Seconds; infinite when no cutting fits and is within `at_most`.
    """
    best = _only_first(times)
    for index in range(times.num_stages):
        following = np.full_like(best, np.inf)
        for starts, ends in _blocks(times, index, at_most):
            costs = times.costs(index, starts[:, None], ends[None, :])
            following[ends] = np.maximum(best[starts, None], costs).min(axis=0)
        best = following
    return float(best[-1]) if best[-1] <= at_most else np.inf


def _least_total(times: StageTimes, limit: float) -> list[int]:
    """Boundaries of the cutting with the least total time whose stages all stay within `limit`."""
    table = times.memory.table
    crossing = table.forward_bytes + table.backward_bytes
    total = _only_first(times)
    num_bytes = np.zeros(table.last + 1, dtype=np.int64)
    origins: list[Ints] = []
    for index in range(times.num_stages):
        following, bytes_following = np.full_like(total, np.inf), np.zeros_like(num_bytes)
        origin = np.zeros_like(num_bytes)
        for starts, ends in _blocks(times, index, limit):
            costs = times.costs(index, starts[:, None], ends[None, :])
            sums = total[starts, None] + np.where(costs <= limit, costs, np.inf)
            least = sums.min(axis=0)
            exchanged = times.memory.exchanged_bytes(starts[:, None], ends[None, :])
            moved = num_bytes[starts, None] + exchanged
            tied = np.where(sums == least, moved, _NO_LIMIT)
            following[ends], origin[ends] = least, starts[tied.argmin(axis=0)]
            bytes_following[ends] = tied.min(axis=0) + crossing[ends]
        total, num_bytes = following, bytes_following
        origins.append(origin)
    boundaries = [table.last]
    for origin in reversed(origins):
        boundaries.append(int(origin[boundaries[-1]]))
    return boundaries[::-1]


def _only_first(times: StageTimes) -> Floats:
    """Before any stage only the start of the graph is reached, at no cost."""
    return np.where(np.arange(times.memory.table.last + 1) == 0, 0.0, np.inf)


def _blocks(times: StageTimes, index: int, limit: float) -> Iterator[tuple[Ints, Ints]]:
    """Boundaries where stage `index` may start and end, in pieces; the leaf ends at the last."""
    last = times.memory.table.last
    is_leaf = index == times.num_stages - 1
    for low in (last,) if is_leaf else range(1, last, _BLOCK):
        ends = np.arange(low, last + 1 if is_leaf else min(low + _BLOCK, last))
        first = times.first_start(index, low, limit) if index else 0
        yield np.arange(first, ends[-1] if index else 1), ends
