"""The best plan by trying everything, from the closed form, sharing no code with the planner.

Only what fits is asked of the planner's memory model, which is not in question here. Up to
`PLAIN_NODES`, with few cuts, every subset, order and combination of cuts is computed; above that a
programme over subsets, with every Pareto point kept; groupings by trying every one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import CostTable
from ravnest.stage.schedule import Schedule

PLAIN_NODES = 6
_PLAIN_BOUNDARIES = 20

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Points = tuple[_Ints, _Floats, _Floats]  # starts, loops and excesses of suffixes


def best_rate(table: CostTable, settings: PlanningSettings, nodes: Sequence[NodeSpec]) -> float:
    """Microbatches per second of the best plan."""
    best = 0.0
    optimistic = _rates(table, settings, nodes, 2) if len(nodes) > 1 else {}
    for number in range(1, len(nodes) + 1):
        # Averaging takes longer the more clusters there are: with two it bounds what more can have.
        if number > 2 and _best_grouping(optimistic, len(nodes), number) <= best:
            continue
        rates = optimistic if number == 2 else _rates(table, settings, nodes, number)
        best = max(best, _best_grouping(rates, len(nodes), number))
    return best


def _rates(
    table: CostTable, settings: PlanningSettings, nodes: Sequence[NodeSpec], number: int
) -> dict[int, float]:
    """Rate of the best pipeline of exactly the nodes of each subset (a bit mask) that has one."""
    trial = _Trial(table, settings, nodes, number)
    if len(nodes) <= PLAIN_NODES and table.last <= _PLAIN_BOUNDARIES:
        times = trial.every_order()
    else:
        times = trial.by_subsets()
    return {mask: settings.frequency / time for mask, time in times.items()}


def _best_grouping(rates: dict[int, float], num_nodes: int, number: int) -> float:
    """The highest sum of so many disjoint subsets."""
    best = np.full((number + 1, 1 << num_nodes), -np.inf)
    best[0, 0] = 0.0
    for mask in range(1, 1 << num_nodes):
        lowest = mask & -mask
        rest = mask ^ lowest
        best[:, mask] = best[:, rest]  # the lowest node is left out
        part = rest
        while True:
            rate = rates.get(part | lowest)
            if rate is not None:
                with_it = best[:-1, rest ^ part] + rate
                best[1:, mask] = np.maximum(best[1:, mask], with_it)
            if part == 0:
                break
            part = (part - 1) & rest
    best[0] = 0.0
    return float(best[number, -1])


class _Trial:
    """Seconds and bytes of every stage on every node, for one number of clusters."""

    def __init__(
        self,
        table: CostTable,
        settings: PlanningSettings,
        nodes: Sequence[NodeSpec],
        number: int,
    ) -> None:
        self._nodes, self._settings = nodes, settings
        self._memory = MemoryModel(table, settings, is_averaged=number > 1)
        self._last = table.last
        self._is_flushed = settings.schedule.is_flushed
        self._periods = settings.frequency - (1 if self._is_flushed else 0)
        work = table.work
        trained = table.trained_bytes.astype(float)
        stored = trained + table.fixed_bytes
        share = 2 * (number - 1) / number / settings.steps_per_round
        per_byte = settings.optimizer.step_work_per_byte
        activations = table.forward_bytes * settings.activation_ratio
        gradients = table.backward_bytes * settings.gradient_ratio
        for crossing in (activations, gradients):  # nothing enters or leaves the graph
            crossing[[0, -1]] = 0.0
        out = activations[None, :] + gradients[:, None]
        passing = np.maximum(out, activations[:, None] + gradients[None, :])
        self._computing, self._busy, self._others = [], [], []
        for node in nodes:
            flops, rate = node.flops or 0.0, node.bandwidth_bps / 8
            computing = (work[None, :] - work[:, None]) / flops
            self._computing.append(computing)
            self._busy.append(np.maximum(computing, passing / rate))
            update = per_byte * (trained[None, :] - trained[:, None]) / flops
            averaging = share * (stored[None, :] - stored[:, None]) / rate
            self._others.append(update + averaging)
        self._crossing = activations + gradients
        self._trains = table.num_trained[None, :] > table.num_trained[:, None]
        self._needs: dict[tuple[int, int], _Floats] = {}

    def _needed(self, index: int, size: int) -> _Floats:
        if self._settings.schedule is Schedule.ZB_H1 and index:
            # What a stage holds depends on all stages; the closed form assumes the most there are.
            ahead = size - index
            size = max(ahead + 1, min(self._last, len(self._nodes)))
            index = size - ahead
        if (index, size) not in self._needs:
            start = np.arange(self._last + 1)[:, None]
            end = np.arange(self._last + 1)[None, :]
            needed = self._memory.stage_bytes(start, end, index, size).astype(float)
            self._needs[index, size] = np.where(self._trains, needed, np.inf)
        return self._needs[index, size]

    def _link(self, one: int, other: int) -> _Floats:
        """Both ways per microbatch, by boundary."""
        a, b = self._nodes[one], self._nodes[other]
        rate = min(a.bandwidth_bps, b.bandwidth_bps) / 8
        return self._crossing / rate + 2 * ((a.latency_s or 0.0) + (b.latency_s or 0.0))

    def every_order(self) -> dict[int, float]:
        """Step time per subset, by every order and every combination of cuts."""
        best: dict[int, float] = {}
        for size in range(1, min(len(self._nodes), self._settings.most_stages) + 1):
            inner = list(itertools.combinations(range(1, self._last), size - 1))
            if not inner:
                continue
            cuts = np.array([(0, *each, self._last) for each in inner])
            for order in itertools.permutations(range(len(self._nodes)), size):
                time = self._best_cuts(order, cuts)
                mask = sum(1 << node for node in order)
                if time < best.get(mask, np.inf):
                    best[mask] = time
        return best

    def _best_cuts(self, order: Sequence[int], cuts: npt.NDArray[np.int64]) -> float:
        size = len(order)
        loop = np.zeros(len(cuts))
        excess = np.zeros(len(cuts))
        fits = np.ones(len(cuts), dtype=bool)
        for index in reversed(range(size)):
            start, end = cuts[:, index], cuts[:, index + 1]
            node = order[index]
            computing = self._computing[node][start, end]
            if index + 1 < size:
                loop = loop + self._link(node, order[index + 1])[end]
            loop = loop + computing
            period = np.maximum(self._busy[node][start, end], loop / (size - index))
            excess = np.maximum(excess, self._periods * period + self._others[node][start, end])
            fits &= self._needed(index, size)[start, end] <= self._nodes[node].memory_bytes
        step = (loop if self._is_flushed else 0.0) + excess
        return float(np.where(fits, step, np.inf).min())

    def by_subsets(self) -> dict[int, float]:
        """Step time per subset, by all Pareto points of every suffix."""
        best: dict[int, float] = {}
        suffixes: dict[tuple[int, int], _Points] = {
            (0, -1): (np.array([self._last]), np.zeros(1), np.zeros(1))
        }
        for size in range(1, min(len(self._nodes), self._settings.most_stages) + 1):
            longer: dict[tuple[int, int], list[_Points]] = {}
            for (mask, first), points in suffixes.items():
                for node in range(len(self._nodes)):
                    if not mask >> node & 1:
                        made = self._put_before(node, first, points, size)
                        longer.setdefault((mask | 1 << node, node), []).append(made)
            suffixes = {}
            for (mask, node), many in longer.items():
                start, loop, excess = (np.concatenate(part) for part in zip(*many, strict=True))
                whole = start == 0
                if whole.any():
                    step = (loop if self._is_flushed else 0.0) + excess
                    best[mask] = min(best.get(mask, np.inf), float(step[whole].min()))
                kept = _pareto(start[~whole], loop[~whole], excess[~whole])
                if len(kept[0]):
                    suffixes[mask, node] = kept
        return best

    def _put_before(self, node: int, first: int, points: _Points, size: int) -> _Points:
        """Every stage on a node that may precede a suffix."""
        end, loop, excess = points
        if first >= 0:
            loop = loop + self._link(node, first)[end]
        limit = self._nodes[node].memory_bytes
        fits = self._needed(1, size + 1)[:, end] <= limit  # [start, point]
        fits[0] = self._needed(0, size)[0, end] <= limit
        fits &= np.arange(self._last + 1)[:, None] < end
        start, point = np.nonzero(fits)
        computing = self._computing[node][start, end[point]]
        longer = loop[point] + computing
        period = np.maximum(self._busy[node][start, end[point]], longer / size)
        own = self._periods * period + self._others[node][start, end[point]]
        return start, longer, np.maximum(excess[point], own)


def _pareto(start: _Ints, loop: _Floats, excess: _Floats) -> _Points:
    """Those that no other of the same start has less of both than."""
    order = np.lexsort((excess, loop, start))
    start, loop, excess = start[order], loop[order], excess[order]
    edges = np.flatnonzero(np.diff(start, prepend=-1, append=1 << 30))
    kept = np.ones(len(start), dtype=bool)
    for low, high in itertools.pairwise(edges.tolist()):
        least = np.minimum.accumulate(excess[low:high])
        kept[low + 1 : high] = excess[low + 1 : high] < least[:-1]
    return start[kept], loop[kept], excess[kept]
