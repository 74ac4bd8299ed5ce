"""How much each member counts in the mean. Pure numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weighting:
    """Factors of a weighted mean: `mean = sum(own * x over members) / total`.

    The factors are sample counts without their common divisor, over the smallest power of two
    that is not below their sum. So no product and no partial sum exceeds the largest value that
    went in (masks of -3.4e38 stay finite), equal weights scale exactly, and the mean of two equal
    members is exactly `(a + b) / 2`, subnormal numbers aside.

    Attributes:
        own: what this member multiplies its values with, in [0, 1].
        total: what the owner of a shard divides the sum by, in (0.5, 1].
    """

    own: float
    total: float


def weighting_of(num_samples: Sequence[int], rank: int) -> Weighting:
    """The factors of one member.

    Args:
        num_samples: of every member in order of rank; none negative, at least one positive.
        rank: the member.
    """
    divisor = math.gcd(*num_samples)
    counts = [count // divisor for count in num_samples]
    scale = 1 << (sum(counts) - 1).bit_length()
    return Weighting(own=counts[rank] / scale, total=sum(counts) / scale)
