"""Shortest paths through stages and nodes: the cheapest clusters in a window; see `prices`.

A path goes from boundary to boundary, and takes on each stage the node that is best for it, at a
price + slope * seconds. All slopes of a window are looked at together.
"""

from __future__ import annotations

import numpy as np

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.prices import Pricing, Window


class Paths:
    """Shortest paths by price + slope * seconds.

    Arrays have the axes [boundary, ..., class, slope]: reductions are over the first ones, in whose
    steps numpy then has much to do at once. A class is that of a node's link.
    """

    def __init__(self, pricing: Pricing, prices: Floats, window: Window) -> None:
        self._p, self._prices, self.window = pricing, prices, window
        self._size = pricing.pace.size
        self.slopes = np.array(window.slopes)
        links = pricing.links.transpose(0, 2, 1)[..., None]
        self._links = links * self.slopes  # [class, boundary, class, slope]; either way around
        self._seconds = pricing.allowed(window)
        shape = (self._size, self._size, len(pricing.offsets), len(self.slopes))
        self._stage = [np.full(shape, np.inf) for _ in range(pricing.num_kinds)]
        for variant in range(len(self._seconds)):
            self._fill(variant)
        last = np.full((self._size, *shape[2:]), np.inf)
        last[-1] = 0.0
        self._onward = [last]  # by position from the leaf: [boundary, class, slope]
        self._before: dict[int, dict[int, Floats]] = {}

    @classmethod
    def without_prices(cls, pricing: Pricing, window: Window) -> Paths:
        """Paths by seconds alone."""
        free = cls(pricing, np.zeros(len(pricing.order)), Window(0.0, window.high_s, (1.0,)))
        free._seconds = []  # large, and needed only to look at single nodes
        return free

    def _fill(self, variant: int) -> None:
        """The cheapest node of each class for every stage: [end, start, class, slope] by kind."""
        p = self._p
        allowed = np.isfinite(self._seconds[variant])
        kept = np.flatnonzero(allowed.any(axis=1))
        seconds = np.ascontiguousarray(self._seconds[variant][kept].T)
        costs = _weighed(self._prices, self.slopes, seconds)  # [node, slope, pair]
        ends = [*p.offsets[1:].tolist(), len(p.classes)]
        for low, high in zip(p.offsets.tolist(), ends, strict=True):
            np.minimum.accumulate(costs[low:high], axis=0, out=costs[low:high])
        where = p.end[kept] * self._size + p.start[kept]
        for kind in (k for k in range(p.num_kinds) if p.variant(k) == variant):
            number = p.fitting[kind][kept]  # nodes are in order of memory: those that fit are first
            row = p.offsets + np.maximum(number, 1) - 1
            least = costs[row, :, np.arange(len(kept))[:, None]]  # [pair, class, slope]
            least[number == 0] = np.inf
            self._stage[kind].reshape(-1, *least.shape[1:])[where] = least

    def _kind(self, place: int) -> int:
        return min(place, len(self._stage)) - 1

    def onward(self, place: int) -> Floats:
        """Least cost of what follows a stage at a place: [boundary, class of the stage, slope]."""
        while len(self._onward) < place:
            stage = self._stage[self._kind(len(self._onward))]
            suffix = (stage + self._onward[-1][:, None]).min(axis=0)  # [boundary, class, slope]
            self._onward.append(self._linked(suffix))
        return self._onward[place - 1]

    def _linked(self, costs: Floats) -> Floats:
        """With the cheapest link to a node of each class: [boundary, class, slope] both."""
        found: Floats = (costs.transpose(1, 0, 2)[:, :, None] + self._links).min(axis=0)
        return found

    def least(self, stages: int) -> Floats:
        """The least cost of a cluster of so many stages, per slope."""
        root = self._stage[self._kind(stages)][:, 0]  # [end, class, slope]
        found: Floats = (root + self.onward(stages)).min(axis=(0, 1))
        return found

    def _prefixes(self, stages: int) -> dict[int, Floats]:
        """Least cost of what comes before a place: [boundary, class of the stage there, slope]."""
        if stages not in self._before:
            first = np.full_like(self._onward[0], np.inf)
            first[0] = 0.0
            found = {stages: first}
            for place in range(stages, 1, -1):
                prefix = (self._stage[self._kind(place)] + found[place]).min(axis=1)
                found[place - 1] = self._linked(prefix)
            self._before[stages] = found
        return self._before[stages]

    def _costs(self, k: int, place: int, pairs: Ints | int) -> Floats:
        """Of stages on every node, at one slope."""
        kind = self._kind(place)
        seconds = self._seconds[self._p.variant(kind)][pairs]
        costs = self._prices + self.slopes[k] * seconds
        return np.where(self._p.fits[kind][pairs], costs, np.inf)

    def through(self, k: int, stages: int) -> tuple[Floats, Ints, Ints]:
        """By node: least cost of a cluster through it, its place from the leaf, and its pair."""
        p = self._p
        best = np.full(len(p.classes), np.inf)
        place_of, pair_of = np.zeros((2, len(best)), dtype=np.int64)
        for place in range(1, stages + 1):
            before, after = self._prefixes(stages)[place][..., k], self.onward(place)[..., k]
            around = before[p.start] + after[p.end]
            pairs = np.flatnonzero(np.isfinite(around).any(axis=1))
            if not len(pairs):
                continue
            whole = self._costs(k, place, pairs) + around[pairs][:, p.classes]
            index = whole.argmin(axis=0)
            least = whole[index, np.arange(len(best))]
            better = least < best
            best[better] = least[better]
            place_of[better], pair_of[better] = place, pairs[index[better]]
        return best, place_of, pair_of

    def traced(
        self, k: int, stages: int, node: int, place: int, pair: int, *, once: bool
    ) -> tuple[list[int], list[int]]:
        """The cluster through a node from root to leaf, and its boundaries.

        Args:
            k: index of the slope.
            once: take no node twice; the best there is only by chance then.
        """
        p, links = self._p, self._links[..., k]
        low, high = int(p.start[pair]), int(p.end[pair])
        chosen, cuts, taken = [node], [low, high], np.zeros(len(p.classes))
        taken[node] = np.inf if once else 0.0
        for position in range(place + 1, stages + 1):  # towards the root
            link = links[:, low, p.classes[chosen[0]]]  # [class]
            around = self._prefixes(stages)[position][..., k]
            stage = self._stage[self._kind(position)][low, :, :, k]  # [start, class]
            before = int((around + stage + link).min(axis=1).argmin())
            options = self._costs(k, position, p.pair(before, low)) + taken
            chosen.insert(0, int((options + (link + around[before])[p.classes]).argmin()))
            taken[chosen[0]] = np.inf if once else 0.0
            low = before
            cuts.insert(0, low)
        for position in range(place - 1, 0, -1):  # towards the leaf
            link = links[:, high, p.classes[chosen[-1]]]
            around = self.onward(position)[..., k]
            stage = self._stage[self._kind(position)][:, high, :, k]  # [end, class]
            after = int((around + stage + link).min(axis=1).argmin())
            options = self._costs(k, position, p.pair(high, after)) + taken
            chosen.append(int((options + (link + around[after])[p.classes]).argmin()))
            taken[chosen[-1]] = np.inf if once else 0.0
            high = after
            cuts.append(high)
        return chosen, cuts


def _weighed(prices: Floats, slopes: Floats, seconds: Floats) -> Floats:
    """Price + slope * seconds [node, slope, pair]; infinite where the seconds are."""
    costs: Floats = seconds[:, None] * np.where(slopes > 0, slopes, 1.0)[:, None]
    costs[:, slopes == 0] = np.where(np.isfinite(seconds), 0.0, np.inf)[:, None]
    costs += prices[:, None, None]
    return costs
