"""What no cluster is worth more than, rate over price, by weighted paths and multipliers.

Clusters are looked at by the largest E of their stages (see `pace`), in windows from e_1 to e_2.
With T = e_2 / periods, L_j the seconds of the last j stages with the links between them, and U_j
what the j-th node from the leaf needs per step over periods, a cluster of the window keeps to

    step >= fill L_0 + e_1,    L_j + j U_j <= j T for every j.

So for a slope s >= 0 and multipliers m_j >= 0 its price + s L_0 is no less than the least, over all
paths, of price + s L_0 + sum of m_j (L_j + j U_j - j T): the seconds of a stage k places from the
leaf have the weight s + sum of m_j for j >= k (Lagrange; Held and Karp 1971). Slopes are those of
tangents to the curve price * step = frequency / ratio; above the lines of all slopes the product is
least in a corner. Multipliers follow what the cheapest path exceeds its limits by (Polyak 1969).

What is left out makes ratios larger only: a path may take a node twice, links have levels, and E
counts as e_1 though stages may come to e_2.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.table import Floats
from ravnest.planning.pools.terrain import Terrain
from ravnest.planning.pools.weighted import NO_WEIGHT, Path, Singles, WeightedPaths, Weights

FIRST = 3
"""Stages of the smallest clusters that are looked at."""

_FLATTEST = 0.01  # of the slope of the last tangent, the least weight
_WIDEST = 1.3  # of windows
_APART = 2  # steps of weights from one slope to the next
_MOST_STAGES = 64
_SLACK = 1e-4  # of ratios, for sums of single precision
_ROUNDING = 1e-6  # of costs, the same


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ratios are looked for.

    Attributes:
        prices: of the nodes, all above 0.
        ratio: smaller ones are of no interest.
        narrow: windows wider than this are halved where they have more.
        tries: multipliers that are tried for each slope and number of stages, in narrow ones.
    """

    prices: Floats
    ratio: float
    narrow: float
    tries: int


class WindowRatio:
    """The largest ratio in a window; remembers clusters that it met.

    Args:
        window: e_1 and e_2.
        tries: multipliers that are tried.
        met: takes in clusters.
    """

    def __init__(
        self,
        terrain: Terrain,
        wanted: Wanted,
        window: tuple[float, float],
        tries: int,
        met: set[tuple[int, ...]],
    ) -> None:
        pace, traits, prices = terrain.pace, terrain.costs.traits, wanted.prices
        self._low_s, self._tries, self._met = window[0], tries, met
        self._frequency, self._fill = pace.frequency, float(pace.is_flushed)
        self._product = pace.frequency / wanted.ratio
        # A cluster of a longer L_0 than the second one costs too much.
        longest = self._product / float(prices.min())
        self._period_s = window[1] / pace.periods if pace.periods else longest
        self._shortest = float(pace.work[0, -1] / traits.flops.max())
        self._most = min(terrain.costs.most_stages, _MOST_STAGES)
        flattest = self._fill * self._most * self._period_s + window[0]
        least = _FLATTEST * self._product / max(flattest, 1e-300) ** 2
        self._paths = WeightedPaths(terrain, prices, window[1], least)
        self._plain: dict[int, list[Singles]] = {}  # least costs without multipliers, by slope
        self._known: dict[int, Floats] = {}  # multipliers over slopes, by stages

    def worst(self) -> float:
        """The largest ratio, or that of no interest where it is not larger."""
        worst = 0.0
        for stages in range(1, self._most + 1):
            indices = self._slopes(stages)
            whole, part = self._without(indices, stages)
            longest = stages * self._period_s
            if stages >= FIRST and np.isfinite(whole).all():
                product = self._least_product(indices, whole, self._shortest, longest)
                if product < self._product:
                    product = self._improved(indices, whole, stages)
                    worst = max(worst, self._frequency / max(product, 1e-300) * (1 + _SLACK))
            # No longer cluster has less of both than its last stages.
            rest = self._least_product(indices, part, 0.0, longest)
            if rest * (1 - _SLACK) >= self._product:
                break
        return max(worst, self._frequency / self._product)

    def _slopes(self, stages: int) -> list[int]:
        """Indices of slopes whose tangents touch where clusters of so many stages may be."""
        if not self._fill:
            return [0]
        near, far = self._low_s + self._shortest, self._low_s + stages * self._period_s
        first = self._paths.index(self._product / max(far, near) ** 2, up=True)
        last = self._paths.index(self._product / near**2, up=True)
        return list(range(last, first - _APART, -_APART))

    def _without(self, indices: list[int], stages: int) -> tuple[Floats, Floats]:
        """Least costs without multipliers of whole clusters, and of their last stages alone."""
        whole, part = [], []
        for index in indices:
            solved = self._plain.setdefault(index, [])
            while len(solved) < stages:
                before = solved[-1] if solved else self._paths.none
                solved.append(
                    self._paths.longer(before, len(solved) + 1, (index, index, NO_WEIGHT))
                )
            whole.append(float(solved[-1][0, 0]))
            part.append(float(solved[-1][1:-1].min(initial=np.inf)))
        return np.array(whole), np.array(part)

    def _least_product(
        self, indices: list[int], costs: Floats, shortest: float, longest: float
    ) -> float:
        """The least price * step above the lines of some slopes."""
        if np.isinf(costs).any():
            return np.inf
        slopes = np.array([self._paths.weight(index) for index in indices])
        ends = min(shortest, longest), longest
        one, other = np.triu_indices(len(slopes), 1)
        crossings = (costs[other] - costs[one]) / (slopes[other] - slopes[one])
        loops = np.concatenate((ends, np.clip(crossings, *ends)))
        price = (costs[:, None] - slopes[:, None] * loops).max(axis=0)
        found = np.maximum(price, 0.0) * (self._fill * loops + self._low_s)
        return float(found.min())

    def _improved(self, indices: list[int], costs: Floats, stages: int) -> float:
        """The least product with multipliers, as soon as it is large enough."""
        ends = self._shortest, stages * self._period_s
        found = costs * (1 - _ROUNDING)
        for at, index in enumerate(indices):
            found[at] = max(found[at], self._with_multipliers(index, found[at], stages))
            if self._least_product(indices, found, *ends) >= self._product:
                break
        return self._least_product(indices, found, *ends)

    def _with_multipliers(self, index: int, known: float, stages: int) -> float:
        """The most that a line's costs come to, or enough."""
        slope = self._paths.weight(index)
        if self._fill:
            enough = 2.0 * (self._product * slope) ** 0.5 - slope * self._low_s
        else:
            enough = self._product / self._low_s + slope * stages * self._period_s
        multipliers = slope * self._known.get(stages, np.zeros(stages))
        best, best_multipliers = known, multipliers
        for _ in range(self._tries):
            if best >= enough:
                break
            weights, charged = self._weights(index, multipliers)
            solved = self._paths.solved(weights)
            cost = float(solved[-1][0, 0])
            if np.isinf(cost):
                return np.inf
            cost = cost * (1 - _ROUNDING) - charged
            path = self._paths.traced(solved, weights)
            self._met.add(path.nodes)
            if cost > best:
                best, best_multipliers = cost, multipliers
            exceeded = self._exceeded(multipliers, path)
            size = float(exceeded @ exceeded)
            if size <= 0.0:
                break
            multipliers = np.maximum(multipliers + (enough - cost) / size * exceeded, 0.0)
        self._known[stages] = best_multipliers / slope
        return best

    def _weights(self, index: int, multipliers: Floats) -> tuple[Weights, float]:
        """As they can be had, and what they charge for the limits."""
        slope = self._paths.weight(index)
        wanted = slope + np.cumsum(multipliers[::-1])[::-1]
        of_seconds = [max(self._paths.index(each, up=True), index) for each in wanted.tolist()]
        weight = np.array([*(self._paths.weight(each) for each in of_seconds), slope])
        had = -np.diff(weight) * np.arange(1, len(weight))
        of_update = [self._paths.index(each, up=False) for each in had.tolist()]
        charged = self._period_s * float((weight[:-1] - slope).sum())
        return Weights((*of_seconds, index), tuple(of_update)), charged

    def _exceeded(self, multipliers: Floats, path: Path) -> Floats:
        """What a path exceeds its limits by, and keeps below those that are charged for."""
        place = np.arange(1, len(multipliers) + 1)
        found: Floats = np.cumsum(path.seconds) + place * (path.update - self._period_s)
        found[(multipliers <= 0) & (found < 0)] = 0.0
        return found


def largest_ratio(terrain: Terrain, wanted: Wanted, met: set[tuple[int, ...]]) -> float:
    """What no cluster of three stages and more is worth more than, at least what was wanted.

    Args:
        met: takes in clusters that are worth much, as paths have them.
    """
    open_, worst = _windows(terrain, wanted), wanted.ratio
    while open_:
        low, high = open_.pop()
        is_narrow = high <= low * wanted.narrow or not low
        search = WindowRatio(terrain, wanted, (low, high), wanted.tries * is_narrow, met)
        found = search.worst()
        if found <= wanted.ratio:
            continue
        if is_narrow:
            worst = max(worst, found)
        else:
            middle = (low * high) ** 0.5
            open_ += [(low, middle), (middle, high)]
    return worst


def _windows(terrain: Terrain, wanted: Wanted) -> list[tuple[float, float]]:
    """Over all E that clusters worth more than the ratio can have."""
    pace, traits = terrain.pace, terrain.costs.traits
    high = pace.frequency / wanted.ratio / (FIRST * float(wanted.prices.min()))
    shortest = float(pace.work[0, -1] / traits.flops.max())
    most = min(terrain.costs.most_stages, _MOST_STAGES)
    low = max(pace.periods * shortest / most, 1e-6 * high)
    number = 1 + int(np.ceil(np.log(max(high / low, 1.0)) / np.log(_WIDEST)))
    edges = (low * _WIDEST ** np.arange(number + 1)).tolist()
    if not pace.periods:
        edges = [0.0, *edges]
    return list(itertools.pairwise(edges))
