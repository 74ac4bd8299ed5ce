"""What clusters in a window are worth, rate over price, by the paths through it; see `prices`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.paths import Paths
from ravnest.planning.pools.reach import Reach

_PROMISING = 0.6
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Through:
    """The best clusters of a length through every node.

    Attributes:
        k: index of the slope that they were looked for with.
        worth: rate over price.
        place: position of the node from the leaf.
        pair: its boundaries.
    """

    k: int
    worth: Floats
    place: Ints
    pair: Ints


def largest_ratio(reach: Reach, paths: Paths, known: float) -> tuple[float, int]:
    """The largest rate over price of a larger cluster in a window, and of how many stages.

    Args:
        known: a smaller ratio is of no interest.
    """
    pricing, pace = reach.pricing, reach.pricing.pace
    worst, size = 0.0, pricing.first
    least_s = pace.is_flushed * pricing.least_loop + paths.window.low_s
    for stages in range(pricing.first, pricing.most_stages + 1):
        # A cluster costs no less than its last stages, and these no less the more they are.
        cheapest = float(paths.onward(stages)[..., 0].min())
        if pace.frequency <= max(known, worst) * cheapest * least_s:
            return max(worst, known), size
        if reach.is_possible(paths.window, stages):
            ratio = _ratio(reach, paths, stages)
            if ratio > worst:
                worst, size = ratio, stages
    return worst, size


def _ratio(reach: Reach, paths: Paths, stages: int) -> float:
    pace, slopes, least = reach.pricing.pace, paths.slopes, paths.least(stages)
    shortest = reach.least_loop_of(paths.window, stages)
    longest = max(reach.longest_loop(paths.window, stages), shortest)
    i, j = np.triu_indices(len(slopes), 1)
    crossings = np.clip((least[j] - least[i]) / (slopes[j] - slopes[i]), shortest, longest)
    loops = np.concatenate(([shortest, longest], crossings))
    price = (least[:, None] - slopes[:, None] * loops).max(axis=0)
    product = float((price * (pace.is_flushed * loops + paths.window.low_s)).min())
    return pace.frequency / max(product, _TINY)


def culprit(reach: Reach, paths: Paths, stages: int) -> tuple[tuple[int, ...], float]:
    """A cluster of so many stages that is worth much, as the bound sees it, and its rate."""
    k, _ = _steepest(reach, paths, stages)
    costs, place, pair = paths.through(k, stages)
    node = int(costs.argmin())
    chain, cuts = paths.traced(k, stages, node, int(place[node]), int(pair[node]), once=False)
    named = reach.pricing.order[chain].tolist()
    return tuple(named), reach.pricing.rate_of(chain, cuts)


def through(reach: Reach, paths: Paths, stages: int) -> Through | None:
    """The best clusters through every node; None if they are not worth much.

    The worth is that of the point in which a line could touch the curve of equal worth, for the
    slope of which that is most.
    """
    if not reach.is_possible(paths.window, stages):
        return None
    k, most = _steepest(reach, paths, stages)
    if not most > _PROMISING:
        return None
    costs, place, pair = paths.through(k, stages)
    return Through(k, _touching(reach, paths, k, costs), place, pair)


def _steepest(reach: Reach, paths: Paths, stages: int) -> tuple[int, float]:
    """Index of the slope for which the touching point is worth most, and that worth."""
    least = paths.least(stages)
    worth = [float(_touching(reach, paths, k, least[k])) for k in range(1, len(least))]
    k = int(np.argmax(worth))
    return 1 + k, worth[k]


def _touching(reach: Reach, paths: Paths, k: int, least: Floats) -> Floats:
    pace, slope, excess = reach.pricing.pace, float(paths.slopes[k]), paths.window.high_s
    if pace.is_flushed:
        half = (least + slope * excess) / 2
        return pace.frequency * slope / half**2
    price = np.maximum(least - slope * excess / max(pace.periods, 1), _TINY)
    found: Floats = pace.frequency / (price * excess)
    return found
