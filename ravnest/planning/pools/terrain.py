"""What bounds by weighted paths know of stages, nodes and links, whatever the prices.

Stages of the same work, bytes and memory are one shape: a model of many equal blocks has far fewer
shapes than pairs of boundaries. A link takes bytes over the slower rate of its ends; rates are
rounded up to levels where they are many.
"""

from __future__ import annotations

import numpy as np

from ravnest.planning.inputs.table import Bools, Floats, Ints
from ravnest.planning.pools.costs import StageCosts
from ravnest.planning.search.pace import Pace, Traits

_MOST_LEVELS = 64
KINDS = 16
"""Positions from the leaf whose memory is told apart."""


class Terrain:
    """Nodes are in ascending order of their links' rate.

    Attributes:
        order: the caller's number of each node.
        num_levels: of rates.
        level_of: of each node.
        links: seconds at each boundary without delays, by level: [boundary, level].
        shape_at: shape of a stage, one more than there are where there is none: [end, start].
        num_kinds: positions from the leaf whose memory is told apart.
    """

    def __init__(self, pace: Pace, traits: Traits) -> None:
        self.pace, self.costs = pace, StageCosts(pace, traits, KINDS)
        rates = np.unique(traits.rate)
        if len(rates) > _MOST_LEVELS:
            tops = np.linspace(0, len(rates) - 1, _MOST_LEVELS + 1)[1:].round().astype(np.int64)
            rates = rates[tops]
        level = np.searchsorted(rates, traits.rate)
        self.order: Ints = np.lexsort((np.arange(len(level)), level))
        self.level_of: Ints = level[self.order]
        self.num_levels, self.num_kinds = len(rates), self.costs.num_kinds
        self.links: Floats = self.costs.num_bytes[:, None] / rates
        self._set_shapes()
        self._set_stages(traits)

    def _set_shapes(self) -> None:
        pace, costs = self.pace, self.costs
        at = costs.start, costs.end
        sides = (costs.start > 0).astype(np.float64) + (costs.end < pace.size - 1)
        told = [sides, *(self._near(each[at]) for each in (pace.work, pace.update_flops))]
        told += [self._near(each[at]) for each in (pace.sent_per_step, pace.passing_bytes)]
        for place in range(1, self.num_kinds + 1):
            for accelerated in np.unique(costs.traits.accelerated).tolist():
                told.append(pace.needed(place, accelerated=accelerated)[at])
        _, first, shape = np.unique(np.stack(told), axis=1, return_index=True, return_inverse=True)
        self._pair: Ints = first  # one of each shape
        self._is_root: Bools = costs.start[first] == 0
        self._is_leaf: Bools = costs.end[first] == pace.size - 1
        self.shape_at: Ints = np.full((pace.size, pace.size), len(first))
        self.shape_at[costs.end, costs.start] = shape.ravel()

    @staticmethod
    def _near(values: Floats) -> Floats:
        """To seven digits, which differences of large sums may not have alike."""
        return values.astype(np.float32).astype(np.float64)

    def _set_stages(self, traits: Traits) -> None:
        costs, periods = self.costs, self.pace.periods
        delay = 2.0 * traits.latency_s
        update = costs.update[self._pair]
        seconds, excess = [], []
        for computing, busy in ((costs.leaf, costs.leaf_busy), (costs.computing, costs.busy)):
            seconds.append(self._ordered(computing[self._pair] + ~self._is_leaf[:, None] * delay))
            excess.append(self._ordered(periods * busy[self._pair] + update))
        self._seconds, self._excess = seconds, excess
        self._ahead = self._ordered(~self._is_root[:, None] * delay)
        self._update = self._ordered(update / max(periods, 1))
        self._fits: dict[int, Bools] = {}

    def _ordered(self, values: Floats) -> Floats:
        found: Floats = np.ascontiguousarray(values[:, self.order].T)
        return found

    def kind(self, place: int) -> int:
        """Of stages so many from the leaf."""
        return min(place, self.num_kinds)

    def keeps(self, kind: int, limit_s: float) -> Bools:
        """Which stages fit and keep to an E: [node, shape]."""
        if kind not in self._fits:
            self._fits[kind] = np.ascontiguousarray(
                self.costs.fits(kind)[self._pair][:, self.order].T
            )
        found: Bools = self._fits[kind] & (self._excess[min(kind, 2) - 1] <= limit_s * (1 + 1e-9))
        return found

    def seconds(self, kind: int) -> tuple[Floats, Floats, Floats]:
        """Of stages with the delay behind them; the delay ahead of them; update over periods.

        All three are [node, shape].
        """
        return self._seconds[min(kind, 2) - 1], self._ahead, self._update
