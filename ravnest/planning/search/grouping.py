"""Which subsets of the nodes become clusters: exact, by a programme over subsets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ravnest.planning.inputs.table import Floats
from ravnest.planning.search.subsets import Subsets

Combine = Callable[[Floats, Floats], Floats]


class Groupings:
    """The best ways to divide every subset into one to so many clusters, every node used.

    Args:
        rates: what each subset is worth as one cluster, -inf where it cannot be one.
        most: clusters at most.
        combine: of the worth of a cluster and that of the others; addition, or the minimum for the
            slowest cluster to be as fast as can be.
    """

    def __init__(
        self, subsets: Subsets, rates: Floats, most: int, combine: Combine = np.add
    ) -> None:
        self._subsets, self._rates, self._combine = subsets, rates, combine
        self.values: Floats = np.full((most + 1, subsets.number), -np.inf)
        self.values[0, 0] = 0.0 if combine is np.add else np.inf
        for subset in range(1, subsets.number):
            parts, rest = self._first_clusters(subset)
            worth = combine(rates[parts], self.values[:-1, rest])
            self.values[1:, subset] = worth.max(axis=1)

    def clusters(self, number: int, subset: int) -> list[int]:
        """The clusters of the best way to divide a subset into `number`, as subsets."""
        found = []
        while number:
            parts, rest = self._first_clusters(subset)
            worth = self._combine(self._rates[parts], self.values[number - 1, rest])
            best = int(worth.argmax())
            found.append(int(parts[best]))
            subset, number = int(rest[best]), number - 1
        return found

    def _first_clusters(self, subset: int) -> tuple[np.ndarray, np.ndarray]:
        """Every cluster that has the first node, and what is left: clusters have no order."""
        first = int(np.flatnonzero(self._subsets.digits[subset])[0])
        stride = int(self._subsets.strides[first])
        others = self._subsets.parts(subset - stride)
        return others + stride, subset - stride - others
