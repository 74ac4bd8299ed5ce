"""By how much prices fall short of a valid bound; see `prices`."""

from __future__ import annotations

import heapq

from ravnest.planning.inputs.table import Floats
from ravnest.planning.pools.paths import Paths
from ravnest.planning.pools.prices import FIRST, Pricing, Window, worth_of_pairs
from ravnest.planning.pools.ratios import culprit, largest_ratio
from ravnest.planning.pools.reach import Reach
from ravnest.planning.pools.threes import Triples

_WIDEST = 1.4
_NARROWEST = 1.005
_TINY = 1e-300


def valid_ratio(
    reach: Reach,
    prices: Floats,
    windows: int,
    culprits: dict[tuple[int, ...], float] | None = None,
) -> float:
    """What prices must be multiplied by so that no cluster is worth more than those of its nodes.

    Args:
        windows: how many windows are halved; more make the ratio smaller.
        culprits: takes in clusters that are worth much, from root to leaf as the bound sees them,
            which may have a node twice, with their rates.
    """
    pricing = reach.pricing
    prices = prices[pricing.order]
    known = float((pricing.alone / prices).max())
    if pricing.most_stages > 1:
        known = max(known, float(worth_of_pairs(pricing, prices).max()))
    if pricing.first > FIRST and pricing.most_stages >= FIRST:
        known = _with_triples(pricing, prices, known, culprits)
    if pricing.most_stages < pricing.first:
        return known
    known = max(known, _beyond(pricing, prices))
    open_: list[tuple[float, float, float]] = []
    for window in pricing.windows(_WIDEST):
        heapq.heappush(
            open_, (-_ratio_in(reach, prices, window, known), window.low_s, window.high_s)
        )
    for _ in range(windows):
        worst, low, high = open_[0]
        if -worst <= known or high <= low * _NARROWEST:
            break
        middle = (low * high) ** 0.5 if low else high / 2
        heapq.heappop(open_)
        for ends in ((low, middle), (middle, high)):
            window = pricing.window(*ends)
            ratio = min(-worst, _ratio_in(reach, prices, window, known, culprits))
            heapq.heappush(open_, (-ratio, *ends))
    return max(known, -open_[0][0])


def _with_triples(
    pricing: Pricing,
    prices: Floats,
    known: float,
    culprits: dict[tuple[int, ...], float] | None,
) -> float:
    """The largest ratio with clusters of three."""
    triples = Triples(pricing, prices)
    worst = triples.worst(known) if culprits is not None else triples.worst(known, near=1.0)
    if culprits is not None:
        for nodes, rate in triples.near.items():
            culprits[tuple(pricing.order[list(nodes)].tolist())] = rate
    return worst


def _ratio_in(
    reach: Reach,
    prices: Floats,
    window: Window,
    known: float,
    culprits: dict[tuple[int, ...], float] | None = None,
) -> float:
    """The largest ratio in a window, or what is known where that is not less."""
    if not reach.may_have_clusters(window):
        return 0.0
    paths = Paths(reach.pricing, prices, window)
    ratio, worst = largest_ratio(reach, paths, known)
    if culprits is not None and ratio > known:
        nodes, rate = culprit(reach, paths, worst)
        culprits[nodes] = max(rate, culprits.get(nodes, 0.0))
    return ratio


def _beyond(pricing: Pricing, prices: Floats) -> float:
    """The largest ratio of clusters of so large an E that no window has it."""
    cheapest = 3.0 * float(prices.min())
    highest = pricing.windows(_WIDEST)[-1].high_s
    return pricing.pace.frequency / (highest * max(cheapest, _TINY))
