"""What a cluster must still cost, at least, of which the last stages are known: see `suffixes`.

Clusters are looked at by the largest E of their stages, in windows. A suffix has a price P, L and
the largest E so far; the stages before it add a price p and seconds l. In a window from e_1 on

    step >= fill (L + l) + max(E, e_1)

so price * step is no less than (P + p) (fill (L + l) + max(E, e_1)). For any slope s the least
p + s l is the length of a shortest path (`walks`) over stages that keep to the window. Above the
lines of all slopes the product is least in a corner, for along a line it is concave.

What is left out makes the product smaller only: a node may be taken twice, or be in the suffix;
further periods may be longer than e_1 because of links.
"""

from __future__ import annotations

import numpy as np

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.walks import Ground, Walks, least_of_lower

_NUM_SLOPES = 5
_LONGEST = 10  # stages whose L the flattest slope is made for
_WIDEST = 2.0  # between the ends of the window, for the steepest one
_HUGE = 1e30
_LEAST_KINDS, _KINDS_BY_LENGTH = 12.0, 8.0  # fewer make bounds looser, more take longer


class Outlook:
    """The least product of price and step that suffixes can come to in a window.

    Args:
        prices: of the nodes.
        low_s, high_s: E of the clusters that are looked at.
        most_stages: of them.
    """

    def __init__(
        self, ground: Ground, prices: Floats, low_s: float, high_s: float, most_stages: int
    ) -> None:
        self._ground, self._low_s, self._pace = ground, low_s, ground.costs.pace
        self._slopes = self._slopes_for(max(low_s, high_s / _WIDEST), high_s)
        self._corners: list[tuple[Floats, Floats]] = []
        if most_stages > 1:
            kinds = max(2, num_kinds(ground, high_s))
            most_kinds = min(kinds, most_stages)
            walks = Walks(ground, prices, self._slopes, high_s * (1 + 1e-9), most_kinds)
            before = walks.any_number(kinds) if most_stages > kinds else walks.none
            for place in range(most_kinds, 1, -1):
                table = walks.longer(place, before)
                self._corners.insert(0, self._corners_of(table))
                before = np.minimum(walks.none, table)

    def _slopes_for(self, low_s: float, high_s: float) -> Floats:
        """0, and those with which the curve of equal product is touched."""
        pace = self._pace
        longest = pace.is_flushed * _LONGEST * high_s / max(pace.periods, 1) + high_s
        flattest, steepest = pace.frequency / longest**2, 2.0 * pace.frequency / low_s**2
        return np.concatenate(([0.0], np.geomspace(flattest, steepest, _NUM_SLOPES)))

    def _corners_of(self, table: Floats) -> tuple[Floats, Floats]:
        """Corners (p, fill l) for suffixes whose first node is of a level.

        Returns:
            Both [corner, boundary and level in one].
        """
        table = least_of_lower(table)
        is_there = np.isfinite(table[-1])
        lines = np.where(is_there, table[:-1], 0.0)
        shortest = np.where(is_there, table[-1], 0.0)
        slopes = self._slopes[:, None, None]
        crossings = np.diff(lines, axis=0) / np.diff(slopes, axis=0)
        added = np.concatenate((shortest[None], np.maximum(crossings, shortest)))
        price = (lines[:, None] - slopes[:, None] * added).max(axis=0)
        price = np.where(is_there, np.maximum(price, 0.0), _HUGE)
        number = len(price)
        added = self._pace.is_flushed * added
        return (
            price.transpose(0, 2, 1).reshape(number, -1),
            added.transpose(0, 2, 1).reshape(number, -1),
        )

    def products(
        self,
        stages: int,
        at: tuple[Ints, Ints],
        price: Floats,
        loop: Floats,
        excess: Floats,
    ) -> Floats:
        """The least price * step of clusters with these suffixes of so many stages.

        Args:
            at: boundary and first node of each.
            loop: L with the delay of the first node's link.
        """
        if not self._corners:
            return np.full(len(price), np.inf)
        price_of, added_of = self._corners[min(stages, len(self._corners)) - 1]
        place = at[0] * self._ground.num_levels + self._ground.level[at[1]]
        own = self._pace.is_flushed * loop + np.maximum(excess, self._low_s)
        found = np.full(len(price), np.inf)
        for corner_price, corner_added in zip(price_of, added_of, strict=True):
            product = price + corner_price[place]
            product *= own + corner_added[place]
            np.minimum(found, product, out=found)
        return found


def num_kinds(ground: Ground, high_s: float) -> int:
    """Positions whose memory is told apart in a window: clusters of a large E have few stages."""
    costs, pace = ground.costs, ground.costs.pace
    shortest = pace.periods * float(pace.work[0, -1] / costs.traits.flops.max())
    wanted = _LEAST_KINDS + _KINDS_BY_LENGTH * shortest / high_s
    return costs.num_kinds if not shortest else int(min(wanted, costs.num_kinds))
