"""Which tensors a round is about when each averages a part of them. Knows names and sizes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One of several fragments; by default everything.

    Attributes:
        index: which, from 0 on.
        count: of how many.
    """

    index: int = 0
    count: int = 1

    def of(self, names: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
        """The names in it: neighbours, together about one in `count` of all elements.

        Every name is in exactly one part. Tensors are never cut: an outer optimizer may need
        them whole. One that is larger than a part makes its part as large.

        Args:
            names: in the order of the ring.
            sizes: elements by name; those without a size count as empty.
        """
        total = sum(sizes.get(name, 0) for name in names)
        before, found = 0, []
        for name in names:
            size = sizes.get(name, 0)
            middle = 2 * before + size  # of it, in halves of elements
            place = self.count * middle // (2 * total) if total else 0
            if min(place, self.count - 1) == self.index:
                found.append(name)
            before += size
        return tuple(found)
