"""What a cluster must still cost, at least, of which the last stages are known: see `suffixes`.

A suffix has a price P, L and the largest E of its stages. The stages before it add a price p and
seconds l, and E becomes e or stays. With the weights of two bounds of the step, that E is E_k for
every stage, and that no period is shorter than L_0 / S,

    step >= fill (L + l) + (1 - w) max(E, e) + w periods (L + l) / S

so price * step is no less than (P + p) (base + m), base being known and m what is added. For any
slope s the least p + s m is the length of a shortest path over boundaries, on which every stage
takes the node that is best for it; above the lines of all slopes the product is least in a corner,
for along a line it is concave. E is taken in windows: stages before the suffix may have any E of
the suffix's own window, or of a higher one at what its lower edge lies above it.

What is left out makes the product smaller only: a node may be taken twice, or be in the suffix;
half of a link's bytes go over it at the rate of either end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.costs import StageCosts

_WEIGHT = 0.5
_WIDTH = 1.4  # of a window
_STEEPER = 2.2
_NUM_SLOPES = 5
_MOST_WINDOWS = 32
_FULL_NUMBERS = 8  # of stages that are told apart
_HUGE = 1e30


class Outlook:
    """The least product of price and step that suffixes can come to.

    Args:
        prices: of the nodes.
        limit: larger products are of no interest.
        most_stages: of the clusters that are looked at.
    """

    def __init__(self, costs: StageCosts, prices: Floats, limit: float, most_stages: int) -> None:
        self._costs, self._pace = costs, costs.pace
        self._most = most_stages
        self._told = min(most_stages, _FULL_NUMBERS)
        self._set_windows(prices, limit)
        if self._told > 1:
            reach = self._reach(self._stages(prices))
            self._corners = [self._corners_of(reach[k], k) for k in range(1, len(reach))]

    def _set_windows(self, prices: Floats, limit: float) -> None:
        pace = self._pace
        cheapest = float(np.sort(prices)[:2].sum())
        high = limit / cheapest
        least_loop = float(pace.work[0, -1] / self._costs.traits.flops.max())
        low = max(pace.periods * least_loop / _FULL_NUMBERS, high * _WIDTH**-_MOST_WINDOWS)
        number = max(1, int(np.ceil(np.log(max(high / low, 1.0)) / np.log(_WIDTH))))
        edges = low * _WIDTH ** np.arange(number + 1)
        edges[0], edges[-1] = 0.0, _HUGE
        self._low, self._high = edges[:-1], edges[1:]
        flattest = limit / (2.0 * high) ** 2
        count = 1 + int(np.ceil(2.0 * np.log(2.0 * high / low) / np.log(_STEEPER)))
        steep = flattest * _STEEPER ** np.arange(max(count, _NUM_SLOPES))
        self._slopes: Floats = np.concatenate(([0.0], steep))
        # Those around where the curve of equal product is touched, which depends on the step.
        touching = limit / (2.0 * np.minimum(self._high, high)) ** 2
        first = np.clip(np.searchsorted(steep, touching) - 1, 0, len(steep) - _NUM_SLOPES)
        own = 1 + first[:, None] + np.arange(_NUM_SLOPES)
        self._own: Ints = np.concatenate((np.zeros((number, 1), dtype=np.int64), own), axis=1)

    def _stages(self, prices: Floats) -> list[Floats]:
        """The least price + slope * seconds of stages: [window, slope, start, end] by kind.

        The last slope is that of seconds alone.
        """
        costs, size = self._costs, self._pace.size
        start, end = costs.start, costs.end
        nodes = np.arange(len(prices))
        seconds = costs.computing + costs.half_link(end[:, None], nodes)
        seconds += np.where(start > 0, 1.0, 0.0)[:, None] * costs.half_link(start[:, None], nodes)
        excess = self._pace.periods * costs.computing + costs.update
        order = np.argsort(excess, axis=1, kind="stable")
        excess, seconds = (np.take_along_axis(each, order, axis=1) for each in (excess, seconds))
        price = prices[order]
        allowed = np.stack([(excess <= high).sum(axis=1) for high in self._high])
        rows, last = np.arange(len(start)), np.maximum(allowed - 1, 0)
        found = []
        for kind in range(2, min(len(costs.first_fitting), self._most) + 1):
            fits = np.take_along_axis(costs.fits(kind), order, axis=1)
            shape = (len(self._high), len(self._slopes) + 1, size, size)
            least = np.full(shape, np.inf)
            for index in range(shape[1]):
                is_time = index == len(self._slopes)
                cost = seconds if is_time else price + self._slopes[index] * seconds
                cost = np.minimum.accumulate(np.where(fits, cost, np.inf), axis=1)
                least[:, index, start, end] = np.where(allowed > 0, cost[rows, last], np.inf)
            found.append(least)
        return found

    def _reach(self, stages: Sequence[Floats]) -> list[list[Floats]]:
        """What comes before a suffix of k stages: [k][entry], each [window, slope, boundary].

        Entries are of 1, 2, ... further stages up to those told apart, and one of any more.
        """

        def longer(suffix: int, before: Floats) -> Floats:
            stage = stages[min(suffix + 1, len(stages) + 1) - 2]
            found: Floats = (stage + before[..., None]).min(axis=2)
            return found

        none = np.full((*stages[0].shape[:2], self._pace.size), np.inf)
        none[..., 0] = 0.0
        told = self._told
        reach: list[list[Floats]] = [[] for _ in range(told + 1)]
        has_more = self._most > told
        if has_more:
            reach[told] = [longer(told, self._any_number(stages[-1]))]
        for k in range(told - 1, 0, -1):
            after = reach[k + 1]
            exact = after[: len(after) - has_more]
            reach[k] = [longer(k, each) for each in (none, *exact)]
            if has_more:
                reach[k].append(longer(k, after[-1]))
        return reach if has_more else reach[:told]

    def _any_number(self, stage: Floats) -> Floats:
        """The least cost up to each boundary by any number of stages, none included."""
        least = np.full((*stage.shape[:2], self._pace.size), np.inf)
        least[..., 0] = 0.0
        for end in range(1, self._pace.size):
            least[..., end] = (stage[..., :end, end] + least[..., :end]).min(axis=-1)
        return least

    def _corners_of(self, entries: Sequence[Floats], k: int) -> tuple[Floats, Floats, Floats]:
        """Corners (p, m) of the lines: [window of the suffix, boundary, entry, corner].

        And by entry how much a second of L counts.
        """
        pace = self._pace
        sizes = np.array([k + 1 + index for index in range(len(entries))], dtype=np.float64)
        if self._most > self._told:
            sizes[-1] = self._most
        weights = pace.is_flushed + _WEIGHT * pace.periods / sizes
        pairs = [
            self._corners_along(each, weight)
            for each, weight in zip(entries, weights.tolist(), strict=True)
        ]
        price, added = (np.stack(each, axis=2) for each in zip(*pairs, strict=True))
        return price, added, weights

    def _corners_along(self, entry: Floats, weight: float) -> tuple[Floats, Floats]:
        """Of one entry: [window of the suffix, boundary, corner] both."""
        above = (1.0 - _WEIGHT) * np.maximum(self._low - self._high[:, None], 0.0)
        slopes = np.concatenate((self._slopes / weight, [1.0]))
        scaled = entry.copy()
        scaled[:, -1] *= weight
        lines = np.stack(
            [
                (scaled[own:] + slopes[:, None] * above[own, own:, None, None]).min(axis=0)
                for own in range(len(above))
            ]
        )
        shortest = lines[:, -1]
        is_there = np.isfinite(shortest)[:, None]
        lines = np.where(is_there, np.take_along_axis(lines, self._own[..., None], axis=1), 0.0)
        slope = slopes[self._own][..., None]
        crossings = np.diff(lines, axis=1) / np.diff(slope, axis=1)
        shortest = np.where(is_there, shortest[:, None], 0.0)
        added = np.concatenate((shortest, np.maximum(crossings, shortest)), axis=1)
        price = (lines[:, None] - slope[:, None] * added[:, :, None]).max(axis=2)
        price = np.where(is_there, np.maximum(price, 0.0), _HUGE)
        return price.transpose(0, 2, 1).copy(), added.transpose(0, 2, 1).copy()

    def products(
        self, stages: int, boundary: Ints, price: Floats, loop: Floats, excess: Floats
    ) -> Floats:
        """The least price * step of clusters with these suffixes of so many stages.

        Args:
            loop: L with what the link before the suffix takes at least.
        """
        if stages >= self._most or self._told < 2:
            return np.full(len(boundary), np.inf)
        price_of, added_of, weights = self._corners[min(stages, len(self._corners)) - 1]
        window = np.minimum(np.searchsorted(self._high, excess), len(self._high) - 1)
        base = weights * loop[:, None] + ((1.0 - _WEIGHT) * excess)[:, None]
        whole = price[:, None, None] + price_of[window, boundary]
        whole *= base[:, :, None] + added_of[window, boundary]
        found: Floats = whole.min(axis=(1, 2))
        return found
