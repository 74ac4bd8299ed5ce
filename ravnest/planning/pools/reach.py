"""Which lengths clusters in a window can have, and the shortest L_0 of each; see `prices`."""

from __future__ import annotations

import numpy as np

from ravnest.planning.pools.paths import Paths
from ravnest.planning.pools.prices import Pricing, Window


class Reach:
    """What is possible in windows, whatever the prices; remembers what it has found."""

    def __init__(self, pricing: Pricing) -> None:
        self.pricing = pricing
        self._free: dict[float, Paths] = {}

    def least_loop_of(self, window: Window, stages: int) -> float:
        """The shortest L_0 of clusters of so many stages that keep to a window."""
        if window.high_s not in self._free:
            self._free[window.high_s] = Paths.without_prices(self.pricing, window)
        return float(self._free[window.high_s].least(stages)[0])

    def is_possible(self, window: Window, stages: int) -> bool:
        """Whether the paths of the bound let any cluster of so many stages be in a window."""
        least, longest = self.least_loop_of(window, stages), self.longest_loop(window, stages)
        return bool(np.isfinite(least) and least <= longest * (1 + 1e-9))

    def may_have_clusters(self, window: Window) -> bool:
        """Whether any cluster of several stages can be in a window."""
        sizes = range(self.pricing.first, self.pricing.most_stages + 1)
        return any(self.is_possible(window, stages) for stages in sizes)

    def longest_loop(self, window: Window, stages: int) -> float:
        """The longest L_0 of a cluster in a window: a period is no shorter than L_0 / stages."""
        if not self.pricing.pace.periods:
            return 1e9 * self.pricing.least_loop
        return stages * window.high_s / self.pricing.pace.periods
