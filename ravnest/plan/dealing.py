"""Which cluster trains on which batch: as many for each as its speed says, evenly spread."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

MAX_LENGTH = 64
"""Batches after which the pattern repeats, at most."""

_GOOD_ENOUGH = 1.02  # time of an epoch, over that of batches dealt out exactly by speed


def deal(rates: Sequence[float]) -> tuple[int, ...]:
    """A pattern of clusters: batch i goes to `pattern[i % len(pattern)]`.

    The shortest pattern that takes at most two percent longer than dealing exactly by speed would,
    else the best of those up to `MAX_LENGTH`. Every cluster is in it. Within the pattern the
    clusters take turns as evenly as can be (smooth weighted round robin).

    Args:
        rates: speed of each cluster, samples per second, all above 0.
    """
    lengths = range(len(rates), max(MAX_LENGTH, len(rates)) + 1)
    counts = [_apportioned(rates, length) for length in lengths]
    times = [_slowest(rates, each) for each in counts]
    chosen = next((i for i, time in enumerate(times) if time <= _GOOD_ENOUGH), None)
    return _spread(counts[times.index(min(times)) if chosen is None else chosen])


def _apportioned(rates: Sequence[float], length: int) -> list[int]:
    """How many of `length` batches each cluster gets, one at least: largest remainders."""
    exact = [rate / sum(rates) * length for rate in rates]
    counts = [max(1, floor(each)) for each in exact]
    while sum(counts) < length:
        counts[max(range(len(rates)), key=lambda c: (exact[c] - counts[c], -c))] += 1
    while sum(counts) > length:
        over = [c for c in range(len(rates)) if counts[c] > 1]
        counts[min(over, key=lambda c: (exact[c] - counts[c], c))] -= 1
    return counts


def _slowest(rates: Sequence[float], counts: Sequence[int]) -> float:
    """Time until the last cluster is done, over that of batches dealt out exactly by speed."""
    ideal = sum(counts) / sum(rates)
    return max(count / rate for count, rate in zip(counts, rates, strict=True)) / ideal


def _spread(counts: Sequence[int]) -> tuple[int, ...]:
    pattern: list[int] = []
    credit = [0] * len(counts)
    for _ in range(sum(counts)):
        credit = [have + count for have, count in zip(credit, counts, strict=True)]
        cluster = max(range(len(counts)), key=lambda c: (credit[c], -c))
        credit[cluster] -= sum(counts)
        pattern.append(cluster)
    return tuple(pattern)
