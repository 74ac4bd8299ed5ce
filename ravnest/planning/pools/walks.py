"""The least that stages before a suffix cost, by shortest paths that may take a node twice.

Price + slope * seconds is a sum over stages and links, so the least of it over all that may come
before a boundary is the length of a shortest path. A link takes bytes over the slower rate of its
ends: paths choose a level of rate for each, and a stage the best of the nodes whose link is no
slower than the levels on both sides. Where there are too many levels, rates are rounded up.
"""

from __future__ import annotations

import numpy as np

from ravnest.planning.inputs.table import Bools, Floats, Ints
from ravnest.planning.pools.costs import StageCosts

_MOST_LEVELS = 12


class Ground:
    """What does not depend on prices, nodes in ascending order of the rate of their links.

    Attributes:
        order: the caller's number of each node.
        level: of the caller's nodes.
        num_levels: how many there are.
        seconds, excess: with the delay of links: [pair, node].
        fits: by kind.
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
        self.order: Ints = np.argsort(self.level, kind="stable")
        self.first_of: Ints = np.searchsorted(self.level[self.order], np.arange(len(rates)))
        self.links: Floats = costs.num_bytes / rates[:, None]
        size = costs.pace.size
        sides = (costs.start > 0).astype(np.float64) + (costs.end < size - 1)
        seconds = costs.computing + 2.0 * sides[:, None] * traits.latency_s
        self.seconds: Floats = seconds[:, self.order]
        excess = costs.pace.periods * costs.computing + costs.update
        self.excess: Floats = excess[:, self.order]
        self.fits: list[Bools] = [
            costs.fits(kind)[:, self.order] for kind in range(2, costs.num_kinds + 1)
        ]
        self.by_end: Ints = np.lexsort((costs.start, costs.end))
        sorted_ends = costs.end[self.by_end]
        self.at_end: Ints = np.flatnonzero(np.diff(sorted_ends, prepend=-1))
        self.ends: Ints = sorted_ends[self.at_end]


class Walks:
    """Least costs up to boundaries, [line, level, boundary], by several slopes.

    Tables have the link at the boundary in them, at each level. The last line is that of seconds
    alone.

    Args:
        prices: of the nodes.
        slopes: prices of a second.
        most_excess: no stage has an E of more.
    """

    def __init__(self, ground: Ground, prices: Floats, slopes: Floats, most_excess: float) -> None:
        self._ground, self._costs = ground, ground.costs
        self._prices, self._slopes = prices[ground.order], slopes
        self._most_excess = most_excess
        self._stages: dict[int, Floats] = {}
        steepness = np.append(slopes, 1.0)
        self._links: Floats = steepness[:, None, None] * ground.links
        self.none: Floats = np.full(self._links.shape, np.inf)
        self.none[..., 0] = 0.0

    def _stage(self, place: int) -> Floats:
        """By a node of at least a level: [line, level, pair in order of end]."""
        kind = min(place, self._costs.num_kinds)
        if kind not in self._stages:
            self._stages[kind] = self._cheapest(kind)
        return self._stages[kind]

    def _cheapest(self, kind: int) -> Floats:
        ground = self._ground
        held = ground.fits[kind - 2] & (ground.excess <= self._most_excess)
        used = np.flatnonzero(held[ground.by_end].any(axis=1))
        rows = ground.by_end[used]
        found = np.full((len(self._slopes) + 1, ground.num_levels, len(held)), np.inf)
        bare = np.where(held[rows], 0.0, np.inf)
        seconds = ground.seconds[rows] + bare
        for index in range(len(found)):
            is_time = index == len(self._slopes)
            slope = 0.0 if is_time else float(self._slopes[index])
            cost = seconds if is_time else slope * ground.seconds[rows] + self._prices + bare
            least = np.minimum.reduceat(cost, ground.first_of, axis=1)
            found[index][:, used] = np.minimum.accumulate(least[:, ::-1], axis=1)[:, ::-1].T
        return found

    def longer(self, place: int, before: Floats) -> Floats:
        """With one stage more, so many from the leaf."""
        ground = self._ground
        starts = self._costs.start[ground.by_end]
        whole = _joined(self._stage(place), before[..., starts])
        found = np.full_like(before, np.inf)
        found[..., ground.ends] = np.minimum.reduceat(whole, ground.at_end, axis=2)
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
    lower = np.minimum.accumulate(before, axis=1) + stage
    higher = np.minimum.accumulate((before + stage)[:, ::-1], axis=1)[:, ::-1]
    found: Floats = np.minimum(lower, higher)
    return found
