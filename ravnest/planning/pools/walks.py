"""The least that stages before a suffix cost, by shortest paths that may take a node twice.

Price + slope * seconds is a sum over stages and links, so the least of it over all that may come
before a boundary is the length of a shortest path. A link takes bytes over the slower rate of its
ends: paths choose a level of rate for each, and a stage the best of the nodes whose link is no
slower than the levels on both sides. Where there are too many levels, rates are rounded up; memory
is rounded up to a few sizes as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.costs import StageCosts

_MOST_LEVELS = 12
_MOST_SIZES = 16
_FEW_KINDS = 4  # of stages: looking at each takes less time than a table by size


class Ground:
    """What does not depend on prices, nodes in ascending order of their links' rate, and of size.

    Attributes:
        order: the caller's number of each node.
        level: of the caller's nodes.
        num_levels: how many there are.
        groups, at_group: level and size of nodes alike in both, and where those of each begin.
        at_level: where the nodes of each level begin.
        num_sizes: of memory, with an empty one after those of each kind of memory.
        first_sizes: of each kind of memory.
        seconds, excess: with the delay of links: [node, pair].
        least_size: by kind of stage and kind of memory the first size that it fits: [pair].
        links: seconds by level and boundary.
        by_end: pairs in order of their end, and then of their start.
        ends, at_end: ends in that order, and where the pairs of each begin.
    """

    def __init__(self, costs: StageCosts) -> None:
        self.costs, traits = costs, costs.traits
        rates = np.unique(traits.rate)
        if len(rates) > _MOST_LEVELS:
            tops = np.linspace(0, len(rates) - 1, _MOST_LEVELS + 1)[1:].round().astype(np.int64)
            rates = rates[tops]
        self.num_levels = len(rates)
        self.level: Ints = np.searchsorted(rates, traits.rate)
        self._set_sizes()
        self.links: Floats = costs.num_bytes / rates[:, None]
        size = costs.pace.size
        sides = (costs.start > 0).astype(np.float64) + (costs.end < size - 1)
        seconds = costs.computing + 2.0 * sides[:, None] * traits.latency_s
        self.seconds: Floats = seconds.T[self.order]
        excess = costs.pace.periods * costs.busy + costs.update
        self.excess: Floats = excess.T[self.order]
        self.by_end: Ints = np.lexsort((costs.start, costs.end))
        sorted_ends = costs.end[self.by_end]
        self.at_end: Ints = np.flatnonzero(np.diff(sorted_ends, prepend=-1))
        self.ends: Ints = sorted_ends[self.at_end]

    def _set_sizes(self) -> None:
        """Sets what is said of memory, and the order of nodes."""
        costs, traits = self.costs, self.costs.traits
        self.least_size: list[list[Ints]] = [[] for _ in range(1, costs.num_kinds)]
        size = np.zeros(len(traits), dtype=np.int64)
        self.num_sizes, self.first_sizes = 0, list[int]()
        for accelerated in np.unique(traits.accelerated).tolist():
            self.first_sizes.append(self.num_sizes)
            own = np.flatnonzero(traits.accelerated == accelerated)
            own = own[np.argsort(traits.memory[own], kind="stable")]
            edges = np.flatnonzero(np.diff(traits.memory[own], append=np.inf))
            if len(edges) > _MOST_SIZES:
                places = np.linspace(0, len(edges) - 1, _MOST_SIZES + 1)[1:]
                edges = edges[places.round().astype(np.int64)]
            size[own] = self.num_sizes + np.searchsorted(edges, np.arange(len(own)))
            for kind, least in enumerate(self.least_size, 2):
                fits = costs.fits(kind)[:, own[edges]]
                least.append(self.num_sizes + len(edges) - fits.sum(axis=1))
            self.num_sizes += len(edges) + 1
        self.order: Ints = np.lexsort((size, self.level))
        of_both = (self.level * self.num_sizes + size)[self.order]
        self.at_group: Ints = np.flatnonzero(np.diff(of_both, prepend=-1))
        self.groups = np.divmod(of_both[self.at_group], self.num_sizes)
        self.at_level: Ints = np.flatnonzero(np.diff(self.level[self.order], prepend=-1))


class Walks:
    """Least costs up to boundaries, [line, level, boundary], by several slopes.

    Tables have the link at the boundary in them, at each level. The last line is that of seconds
    alone.

    Args:
        prices: of the nodes.
        slopes: prices of a second.
        most_excess: no stage has an E of more.
        most_kinds: of stages that will be asked for; where they are few, each is looked at by
            itself.
    """

    def __init__(
        self,
        ground: Ground,
        prices: Floats,
        slopes: Floats,
        most_excess: float,
        most_kinds: int,
    ) -> None:
        self._ground, self._costs = ground, ground.costs
        self._prices, self._slopes = prices[ground.order], slopes
        self._most_excess = most_excess
        self._stages: dict[int, Floats] = {}
        steepness = np.append(slopes, 1.0)
        self._links: Floats = steepness[:, None, None] * ground.links
        self.none: Floats = np.full(self._links.shape, np.inf)
        self.none[..., 0] = 0.0
        self._by_size = None if most_kinds <= _FEW_KINDS else self._cheapest()

    def _stage(self, place: int) -> Floats:
        """By a node of at least a level: [line, level, pair in order of end]."""
        kind = min(place, self._costs.num_kinds)
        if kind not in self._stages:
            found = self._of_kind(kind) if self._by_size is None else self._by_sizes(kind)
            self._stages[kind] = found[..., self._ground.by_end]
        return self._stages[kind]

    def _by_sizes(self, kind: int) -> Floats:
        assert self._by_size is not None
        pairs = np.arange(len(self._costs.start))
        sizes = self._ground.least_size[kind - 2]
        found: Floats = np.minimum.reduce([self._by_size[:, :, size, pairs] for size in sizes])
        return found

    def _of_kind(self, kind: int) -> Floats:
        """By a node of at least a level: [line, level, pair]."""
        ground = self._ground
        fits = self._costs.fits(kind).T[ground.order] & (ground.excess <= self._most_excess)
        bare = np.where(fits, 0.0, np.inf)
        lines = [_least_of_parts(cost, ground.at_level) for cost in self._costs_of_stages(bare)]
        return least_of_higher(np.stack(lines))

    def _costs_of_stages(self, bare: Floats) -> Iterator[Floats]:
        """Of every line: [node, pair]."""
        for slope in self._slopes.tolist():
            yield slope * self._ground.seconds + bare + self._prices[:, None]
        yield self._ground.seconds + bare

    def _cheapest(self) -> Floats:
        """By a node of at least a level and a size: [line, level, size, pair]."""
        ground = self._ground
        bare = np.where(ground.excess <= self._most_excess, 0.0, np.inf)
        shape = len(self._slopes) + 1, ground.num_levels, ground.num_sizes, bare.shape[1]
        found = np.full(shape, np.inf)
        for index, cost in enumerate(self._costs_of_stages(bare)):
            found[index][ground.groups] = _least_of_parts(cost, ground.at_group)
        found = least_of_higher(found)
        end = ground.num_sizes
        for first in reversed(ground.first_sizes):
            part = found[:, :, first : end - 1]
            part[:] = np.minimum.accumulate(part[:, :, ::-1], axis=2)[:, :, ::-1]
            end = first
        return found

    def longer(self, place: int, before: Floats) -> Floats:
        """With one stage more, so many from the leaf."""
        ground = self._ground
        starts = self._costs.start[ground.by_end]
        whole = _joined(self._stage(place), before[..., starts])
        found = np.full_like(before, np.inf)
        least = _least_of_parts(whole.transpose(2, 0, 1).copy(), ground.at_end)
        found[..., ground.ends] = least.transpose(1, 2, 0)
        return found + self._links

    def any_number(self, place: int) -> Floats:
        """By any number of stages, none included, all of the kind of a place."""
        ground, stage = self._ground, self._stage(place)
        starts = self._costs.start[ground.by_end]
        least = self.none.copy()
        edges = [*ground.at_end.tolist(), len(starts)]
        for index, end in enumerate(ground.ends.tolist()):
            pairs = slice(edges[index], edges[index + 1])
            for _ in range(2 if starts[edges[index + 1] - 1] == end else 1):
                whole = _joined(stage[..., pairs], least[..., starts[pairs]]).min(axis=2)
                least[..., end] = np.minimum(least[..., end], whole + self._links[..., end])
        return least


def _joined(stage: Floats, before: Floats) -> Floats:
    """The least stage at the larger of two levels + table at one of them, by the other level."""
    found: Floats = np.minimum(least_of_lower(before) + stage, least_of_higher(before + stage))
    return found


def _least_of_parts(table: Floats, first: Ints) -> Floats:
    """The least of each part of the first axis; what `reduceat` does, which is slow over it."""
    edges = [*first.tolist(), len(table)]
    parts = [table[low:high].min(axis=0) for low, high in itertools.pairwise(edges)]
    return np.stack(parts)


def least_of_lower(table: Floats) -> Floats:
    """The least at each level and those below it, levels in the second axis."""
    found = table.copy()
    for level in range(1, table.shape[1]):
        np.minimum(found[:, level], found[:, level - 1], out=found[:, level])
    return found


def least_of_higher(table: Floats) -> Floats:
    """The least at each level and those above it, levels in the second axis."""
    return least_of_lower(table[:, ::-1])[:, ::-1]
