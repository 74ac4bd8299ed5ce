"""Range maxima by table: any range's largest value in two look-ups, for arrays of ranges at once.

The sparse table of Bender and Farach-Colton, "The LCA Problem Revisited" (2000), section 3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class RangeMax:
    """Largest values of the ranges of an array.

    Args:
        values: (M,), at least one.
    """

    def __init__(self, values: Ints) -> None:
        self.values = values
        levels = [values]
        for level in range(1, len(values).bit_length()):
            half = 1 << (level - 1)
            before = levels[-1]
            # Entries whose range would reach beyond the end are never asked for.
            following = np.concatenate((before[half:], before[-1:].repeat(half)))[: len(before)]
            levels.append(np.maximum(before, following))
        self._levels = np.stack(levels)
        self._log = np.array([max(n.bit_length() - 1, 0) for n in range(len(values) + 1)])

    def over(self, start: Ints, end: Ints) -> Ints:
        """The largest value from `start` to before `end`, indices that broadcast.

        Where `end` is not after `start` the result is some value of the array.
        """
        start = np.minimum(start, len(self.values) - 1)
        level = self._log[np.clip(end - start, 0, len(self.values))]
        last = np.maximum(end - (1 << level), 0)
        found: Ints = np.maximum(self._levels[level, start], self._levels[level, last])
        return found

    def joined(self, kept: Ints) -> RangeMax:
        """Over the ranges between the given indices, the first of which is 0, and to the end."""
        return RangeMax(np.maximum.reduceat(self.values, kept))
