"""Which clusters are worth most for given prices of the nodes: the columns of `large`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.table import Floats
from ravnest.planning.pools.paths import Paths
from ravnest.planning.pools.prices import FIRST, Pricing, Window, worth_of_pairs
from ravnest.planning.pools.ratios import Through, through
from ravnest.planning.pools.reach import Reach

_SURVEYED = 4  # numbers of stages that are looked at, from the least that can fit
_TRACED = 0.85
_PARTNERS = 4
_SLOPES = 4
_DULL = 0.85


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


def survey(
    reach: Reach, prices: Floats, step: float, known: dict[float, float] | None = None
) -> Survey:
    """Looks for the best clusters through every node, in windows a factor of `step` wide.

    Args:
        known: what was seen in windows for prices much like these, by their ends; those with little
            are passed over. Is brought up to date.
    """
    pricing = reach.pricing
    prices = prices[pricing.order]
    worth = pricing.alone / prices
    of_pairs = worth_of_pairs(pricing, prices)
    worth = np.maximum(worth, np.maximum(of_pairs.max(axis=0), of_pairs.max(axis=1)))
    best, where = _through(reach, prices, step, {} if known is None else known)
    for of_size in best.values():
        worth = np.maximum(worth, of_size)
    found = _Found(pricing)
    _take_pairs(pricing, of_pairs, worth, found)
    for (stages, node), (paths, seen) in sorted(where.items(), key=lambda at: at[0]):
        if best[stages][node] >= _TRACED * worth[node]:
            at = seen.k, stages, node, int(seen.place[node]), int(seen.pair[node])
            real, _ = paths.traced(*at, once=True)
            loose, cuts = paths.traced(*at, once=False)
            found.add(real, loose, pricing.rate_of(loose, cuts))
    return Survey(pricing.in_pool_order(worth), tuple(found.clusters), found.relaxed)


def surveyed(reach: Reach) -> range:
    """Numbers of stages of the clusters that are looked for; models may need many."""
    pricing = reach.pricing
    anything = Window(0.0, np.inf, (1.0,))
    for least in range(FIRST, pricing.most_stages + 1):
        if np.isfinite(reach.least_loop_of(anything, least)):
            return range(least, min(least + _SURVEYED, pricing.most_stages + 1))
    return range(0)


def _through(
    reach: Reach, prices: Floats, step: float, known_in: dict[float, float]
) -> tuple[dict[int, Floats], dict[tuple[int, int], tuple[Paths, Through]]]:
    """By number of stages what the best cluster through every node is worth, and where it is."""
    best: dict[int, Floats] = {}
    where: dict[tuple[int, int], tuple[Paths, Through]] = {}
    sizes = surveyed(reach)
    dull = _DULL * max(known_in.values(), default=0.0)
    for window in reach.pricing.windows(step, _SLOPES):
        if known_in.get(window.high_s, dull) < dull:
            continue
        known_in[window.high_s] = 0.0
        if not any(reach.is_possible(window, stages) for stages in sizes):
            continue
        paths = Paths(reach.pricing, prices, window)
        for stages in sizes:
            known = best.setdefault(stages, np.zeros(len(prices)))
            seen = through(reach, paths, stages)
            if seen is None:
                continue
            for node in np.flatnonzero(seen.worth > known).tolist():
                where[stages, node] = (paths, seen)
            np.maximum(known, seen.worth, out=known)
            known_in[window.high_s] = max(known_in[window.high_s], float(seen.worth.max()))
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
