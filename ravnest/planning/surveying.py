"""Which clusters are worth most for given prices of the nodes: the columns of `large`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ravnest.planning.prices import FIRST, Paths, Pricing, Window
from ravnest.planning.table import Floats

_SURVEYED = 4  # numbers of stages that are looked at, from the least that can fit
_TRACED = 0.85
_PARTNERS = 4
_SLOPES = 4


@dataclass(frozen=True, slots=True)
class Survey:
    """What prices are worth.

    Attributes:
        worth: per node the rate over the price of the best cluster through it, about; 0 where there
            is none.
        clusters: orders of nodes, through every node those that are worth nearly as much, by number
            of stages.
        relaxed: the same as the bound sees them, nodes twice included, with their rates.
    """

    worth: Floats
    clusters: tuple[tuple[int, ...], ...]
    relaxed: dict[tuple[int, ...], float]


class _Found:
    """Clusters worth taking in."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self.clusters: dict[tuple[int, ...], None] = {}
        self.relaxed: dict[tuple[int, ...], float] = {}

    def add(self, order: list[int], loose: list[int], rate: float) -> None:
        named = self._pricing.order
        self.clusters.setdefault(tuple(named[order].tolist()))
        key = tuple(sorted(named[loose].tolist()))
        self.relaxed[key] = max(rate, self.relaxed.get(key, 0.0))


def survey(pricing: Pricing, prices: Floats, step: float) -> Survey:
    """Looks for the best clusters through every node, in windows a factor of `step` wide."""
    prices = prices[pricing.order]
    worth = pricing.alone / prices
    of_pairs = pricing.pairs / (prices[:, None] + prices)
    worth = np.maximum(worth, np.maximum(of_pairs.max(axis=0), of_pairs.max(axis=1)))
    best, where = _through(pricing, prices, step)
    for known in best.values():
        worth = np.maximum(worth, known)
    found = _Found(pricing)
    _take_pairs(pricing, of_pairs, worth, found)
    for (stages, node), (paths, k, place, pair) in sorted(where.items(), key=lambda at: at[0]):
        if best[stages][node] >= _TRACED * worth[node]:
            real, _ = paths.traced(k, stages, node, place, pair, once=True)
            loose, cuts = paths.traced(k, stages, node, place, pair, once=False)
            found.add(real, loose, pricing.rate_of(loose, cuts))
    return Survey(pricing.in_pool_order(worth), tuple(found.clusters), found.relaxed)


def surveyed(pricing: Pricing) -> range:
    """Numbers of stages of the clusters that are looked for; models may need many."""
    if pricing.most_stages < FIRST:
        return range(0)
    loops = pricing.least_loops(Window(0.0, np.inf, (1.0,)))
    least = int(np.isfinite(loops).argmax())
    if not np.isfinite(loops[least]):
        return range(0)
    return range(least, min(least + _SURVEYED, pricing.most_stages + 1))


def _through(
    pricing: Pricing, prices: Floats, step: float
) -> tuple[dict[int, Floats], dict[tuple[int, int], tuple[Paths, int, int, int]]]:
    """By number of stages what the best cluster through every node is worth, and where it is."""
    best: dict[int, Floats] = {}
    where: dict[tuple[int, int], tuple[Paths, int, int, int]] = {}
    sizes = surveyed(pricing)
    for window in pricing.windows(step, _SLOPES):
        if not any(pricing.is_possible(window, stages) for stages in sizes):
            continue
        paths = Paths(pricing, prices, window)
        for stages in sizes:
            known = best.setdefault(stages, np.zeros(len(prices)))
            for k, worth, place, pair in paths.through(stages):
                for node in np.flatnonzero(worth > known).tolist():
                    where[stages, node] = (paths, k, int(place[node]), int(pair[node]))
                np.maximum(known, worth, out=known)
    return best, where


def _take_pairs(pricing: Pricing, of_pairs: Floats, worth: Floats, found: _Found) -> None:
    """The best few partners of every node, either way around."""
    for values, is_root in ((of_pairs, True), (of_pairs.T, False)):
        order = np.argsort(-values, axis=1, kind="stable")[:, :_PARTNERS]
        for node, partners in enumerate(order.tolist()):
            for partner in partners:
                if values[node, partner] >= _TRACED * worth[node]:
                    pair = [node, partner] if is_root else [partner, node]
                    found.add(pair, pair, float(pricing.pairs[pair[0], pair[1]]))
