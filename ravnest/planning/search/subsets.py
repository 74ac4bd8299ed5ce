"""The best pipeline of every subset of the nodes: a dynamic programme over suffixes.

Built from the leaf. What a suffix of a pipeline is worth depends on the nodes in it, the first of
them (for the link to the one before) and the boundary it starts at, for the stage at position k
from the end has k microbatches in flight however long the pipeline gets. So a programme over
(nodes, first node, boundary) in the manner of Held and Karp (1962) finds the best order and the
best cuts at once. Nodes alike are one class: a subset says how many of each class are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.search.labels import pareto_points, relaxed_pair
from ravnest.planning.search.pace import Pace, Traits

_LABELS = (2, 6, 24)
_MOST_LABELS = 3 * 10**7  # labels times boundaries; more than that is not kept in memory
_EQUAL = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Classes of the nodes from root to leaf, and how the graph is cut for them.

    Attributes:
        boundaries: indices into the table, both ends included.
        step_s: seconds of an optimizer step by the closed form.
        is_best: proven to be the fastest of these nodes.
    """

    order: tuple[int, ...]
    boundaries: tuple[int, ...]
    step_s: float
    is_best: bool = False


class Subsets:
    """How many nodes of each class: all such vectors up to given counts, numbered."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.counts = tuple(counts)
        sizes = [count + 1 for count in counts]
        self.strides: Ints = np.cumprod([1, *sizes[:-1]], dtype=np.int64)
        self.number = int(np.prod(sizes, dtype=np.int64))
        index = np.arange(self.number)
        self.digits: Ints = index[:, None] // self.strides % np.array(sizes)
        self.totals: Ints = self.digits.sum(axis=1)

    @property
    def everything(self) -> int:
        """Number of the subset with all nodes."""
        return self.number - 1

    def number_of(self, counts: Ints) -> int:
        """The number of a subset."""
        return int((counts * self.strides).sum())

    def parts(self, subset: int) -> Ints:
        """Numbers of all subsets of a subset, itself and the empty one included, ascending."""
        found = np.zeros(1, dtype=np.int64)
        for digit, stride in zip(self.digits[subset].tolist(), self.strides.tolist(), strict=True):
            if digit:
                found = np.add.outer(np.arange(digit + 1) * stride, found).ravel()
        return np.sort(found)


def lower_bounds(pace: Pace, traits: Traits, subsets: Subsets) -> Floats:
    """Per subset a step time that no pipeline of exactly its nodes is faster than.

    Nearly always it is that of the best one, see `labels`; infinite where none fits.
    """
    shape = (subsets.number, len(traits), 2, pace.size)
    excess, loop = np.full(shape, np.inf), np.full(shape, np.inf)
    links = pace.link_seconds(traits.take(_column(traits)), traits)
    for total in range(int(subsets.totals[-1])):
        before, new, after = _level(subsets, total)
        if total == 0:
            pair = _leaf(pace, len(before), 2)
        else:
            pair = _merged(excess, loop, links, before, new)
        if not np.isfinite(pair[0]).any():
            break
        added = traits.take(new)
        for start in range(pace.size - 1):
            own_loop, own_excess = pace.prepend(pair[1], pair[0], added, total + 1, start)
            flat = (len(before), -1)
            found = relaxed_pair(own_excess.reshape(flat), own_loop.reshape(flat))
            excess[after, new, :, start], loop[after, new, :, start] = found
    times = pace.step_time(loop[..., 0], excess[..., 0])
    best: Floats = times.min(axis=(1, 2))
    return best


def _column(traits: Traits) -> Ints:
    return np.arange(len(traits))[:, None]


def _level(subsets: Subsets, total: int) -> tuple[Ints, Ints, Ints]:
    """Every way to put a node before a suffix of `total`: suffix, class of the node, and both."""
    before = np.flatnonzero(subsets.totals == total)
    has_more = subsets.digits[before] < np.array(subsets.counts)
    row, new = np.nonzero(has_more)
    return before[row], new, before[row] + subsets.strides[new]


def _leaf(pace: Pace, rows: int, labels: int) -> tuple[Floats, Floats]:
    """The empty suffix: nothing behind the end of the graph."""
    excess = np.full((rows, labels, pace.size), np.inf)
    excess[:, 0, -1] = 0.0
    return excess, excess.copy()


def _merged(
    excess: Floats, loop: Floats, links: Floats, before: Ints, new: Ints
) -> tuple[Floats, Floats]:
    """Labels of suffixes whatever their first node is, the link to it included."""
    suffix_excess = excess[before]  # [row, first, label, boundary]
    suffix_loop = loop[before] + links[new][:, :, None, :]
    rows, classes, labels, size = suffix_excess.shape
    flat = (rows, classes * labels, size)
    pair = relaxed_pair(
        np.moveaxis(suffix_excess.reshape(flat), 1, 2),
        np.moveaxis(suffix_loop.reshape(flat), 1, 2),
    )
    return np.moveaxis(pair[0], 2, 1), np.moveaxis(pair[1], 2, 1)


def best_arrangement(
    pace: Pace, traits: Traits, counts: Sequence[int], bound_s: float = 0.0
) -> Arrangement | None:
    """The fastest pipeline of exactly these nodes, or None when none fits.

    Keeps a few labels first. Only where that neither loses any nor reaches the bound, more are
    kept, but none that cannot beat what is known by then.

    Args:
        counts: how many nodes of each class.
        bound_s: a lower bound of the step time.

    Returns:
        The first in a fixed order among those that are equally fast.
    """
    kept = [index for index, count in enumerate(counts) if count]
    own = Subsets([counts[index] for index in kept])
    best: Arrangement | None = None
    for labels in _LABELS:
        if best is not None and own.number * len(kept) * pace.size * labels > _MOST_LABELS:
            break
        limit = np.inf if best is None else best.step_s
        search = _Exact(pace, traits.take(np.array(kept)), own, labels, limit)
        found = search.best()
        if found is not None and (best is None or found.step_s < best.step_s):
            best = found
        proven = not search.overflow or (best is not None and best.step_s <= bound_s * _EQUAL)
        if proven:
            return None if best is None else _renamed(best, kept, is_best=True)
    return None if best is None else _renamed(best, kept, is_best=False)


def _renamed(found: Arrangement, classes: Sequence[int], *, is_best: bool) -> Arrangement:
    order = tuple(classes[index] for index in found.order)
    return Arrangement(order, found.boundaries, found.step_s, is_best)


class _Exact:
    """As `lower_bounds`, with Pareto points and where each came from.

    Args:
        limit_s: what is not faster is of no interest.
    """

    def __init__(
        self, pace: Pace, traits: Traits, subsets: Subsets, labels: int, limit_s: float
    ) -> None:
        self._pace, self._traits, self._subsets, self._labels = pace, traits, subsets, labels
        self._limit_s = limit_s * (1.0 - 1e-12)
        self.overflow = False
        shape = (subsets.number, len(traits), labels, pace.size)
        self._excess, self._loop = np.full(shape, np.inf), np.full(shape, np.inf)
        self._merge_from = np.zeros(shape, dtype=np.int32)
        self._stage_from = np.zeros(shape, dtype=np.int32)

    def best(self) -> Arrangement | None:
        """The best of the subset with all nodes."""
        for total in range(int(self._subsets.totals[-1])):
            self._extend(total)
        last = self._subsets.everything
        times = self._pace.step_time(self._loop[last, :, :, 0], self._excess[last, :, :, 0])
        if not np.isfinite(times).any():
            return None
        first, label = np.unravel_index(int(times.argmin()), times.shape)
        return self._traced(int(first), int(label), float(times[first, label]))

    def _extend(self, total: int) -> None:
        before, new, after = _level(self._subsets, total)
        if total == 0:
            excess, loop = _leaf(self._pace, len(before), self._labels)
        else:
            excess, loop = self._merge(before, new, after)
        added = self._traits.take(new)
        fastest = self._fastest_missing(after)
        for start in range(self._pace.size - 1):
            longer, larger = self._pace.prepend(loop, excess, added, total + 1, start)
            larger = self._promising(longer, larger, fastest, start)
            flat = (len(before), -1)
            points = pareto_points(larger.reshape(flat), longer.reshape(flat), self._labels)
            self._excess[after, new, :, start], self._loop[after, new, :, start] = points[:2]
            self._stage_from[after, new, :, start] = points[2]
            self.overflow |= points[3]

    def _fastest_missing(self, subsets: Ints) -> Floats:
        """Per subset the most operations per second of a node that it lacks."""
        is_missing = self._subsets.digits[subsets] < np.array(self._subsets.counts)
        fastest: Floats = np.where(is_missing, self._traits.flops, 0.0).max(axis=1)
        return fastest

    def _promising(self, loop: Floats, excess: Floats, fastest: Floats, start: int) -> Floats:
        """The excess, infinite where the rest cannot be computed so fast that the limit is kept."""
        if not np.isfinite(self._limit_s):
            return excess
        rest = self._pace.work[0, start] / np.where(fastest > 0, fastest, np.inf)
        whole = loop + rest[:, None, None]
        size = int(self._subsets.totals[-1])
        least = excess
        if self._pace.periods:  # for none of them an infinite loop would be no number
            least = np.maximum(excess, self._pace.periods * whole / size)
        in_time = self._pace.step_time(whole, least) < self._limit_s
        kept: Floats = np.where(in_time, excess, np.inf)
        return kept

    def _merge(self, before: Ints, new: Ints, after: Ints) -> tuple[Floats, Floats]:
        links = self._pace.link_seconds(self._traits.take(new[:, None]), self._traits)
        excess = self._excess[before]
        loop = self._loop[before] + links[:, :, None, :]
        rows, classes, labels, size = excess.shape
        excess, loop = (
            np.moveaxis(each.reshape(rows, classes * labels, size), 1, 2).reshape(rows * size, -1)
            for each in (excess, loop)
        )
        least, shortest, came, overflow = pareto_points(excess, loop, labels)
        self.overflow |= overflow
        shape = rows, size, labels
        self._merge_from[after, new] = np.moveaxis(came.reshape(shape), 2, 1)
        return (
            np.moveaxis(least.reshape(shape), 2, 1),
            np.moveaxis(shortest.reshape(shape), 2, 1),
        )

    def _traced(self, first: int, label: int, step_s: float) -> Arrangement:
        subset, start = self._subsets.everything, 0
        order, boundaries = [first], [0]
        while True:
            length = self._pace.size - start - 1
            stage_from = int(self._stage_from[subset, first, label, start])
            label, end = stage_from // length, stage_from % length + start + 1
            boundaries.append(end)
            if end == self._pace.size - 1:
                return Arrangement(tuple(order), tuple(boundaries), step_s)
            came = int(self._merge_from[subset, first, label, end])
            subset -= int(self._subsets.strides[first])
            first, label = came // self._labels, came % self._labels
            order.append(first)
            start = end


def along(pace: Pace, traits: Traits, labels: int = 16) -> Arrangement | None:
    """The best cuts for nodes in a given order, or None when none fits.

    Keeps up to so many labels per boundary; sixteen are exact but for rare pipelines of many
    stages.
    """
    size, most = len(traits), labels
    excess, loop = _leaf(pace, 1, most)
    came: Ints = np.zeros((size, most, pace.size), dtype=np.int64)
    for index in range(size - 1, -1, -1):
        new_excess, new_loop = np.full_like(excess, np.inf), np.full_like(loop, np.inf)
        added = traits.take(np.array([index]))
        for start in range(pace.size - 1) if index else (0,):
            longer, larger = pace.prepend(loop, excess, added, size - index, start)
            points = pareto_points(larger.reshape(1, -1), longer.reshape(1, -1), most)
            new_excess[:, :, start], new_loop[:, :, start] = points[:2]
            came[index, :, start] = points[2][0]
        excess, loop = new_excess, new_loop
        if index:
            loop = loop + pace.link_seconds(added, traits.take(np.array([index - 1])))[:, None]
    times = pace.step_time(loop[0, :, 0], excess[0, :, 0])
    label = int(times.argmin())
    if not np.isfinite(times[label]):
        return None
    boundaries, step_s = [0], float(times[label])
    for index in range(size):
        length = pace.size - boundaries[-1] - 1
        label, offset = divmod(int(came[index, label, boundaries[-1]]), length)
        boundaries.append(boundaries[-1] + 1 + offset)
    return Arrangement(tuple(range(size)), tuple(boundaries), step_s)


def step_time_of(pace: Pace, traits: Traits, boundaries: Sequence[int]) -> float:
    """Seconds of an optimizer step by the closed form; infinite if the pipeline does not fit."""
    loop, excess = 0.0, 0.0
    size = len(traits)
    for index in range(size - 1, -1, -1):
        start, end = boundaries[index], boundaries[index + 1]
        own = traits.take(np.array([index]))
        if index + 1 < size:
            after = traits.take(np.array([index + 1]))
            loop += float(pace.link_seconds(own, after)[0, end])
        longer, larger = pace.prepend(
            np.full((1, 1, pace.size), loop),
            np.full((1, 1, pace.size), excess),
            own,
            size - index,
            start,
        )
        loop, excess = float(longer[0, 0, end - start - 1]), float(larger[0, 0, end - start - 1])
    return float(pace.step_time(np.array(loop), np.array(excess)))
