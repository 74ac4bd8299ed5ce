"""Time on a node that is not always there."""

from __future__ import annotations

from collections.abc import Iterable

Outages = tuple[tuple[float, float], ...]
"""Times from when to when a node stands still: ascending, apart from each other."""


def merged(spans: Iterable[tuple[float, float]]) -> Outages:
    """Spans in any order, overlapping or not, as outages."""
    result: list[tuple[float, float]] = []
    for begin_s, end_s in sorted(spans):
        if result and begin_s <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end_s))
        else:
            result.append((begin_s, end_s))
    return tuple(result)


def end_of(begin_s: float, seconds: float, outages: Outages) -> float:
    """When work of so many seconds that is begun then is done; outages interrupt it."""
    end_s = begin_s + seconds
    for down_s, up_s in outages:
        if down_s >= end_s:
            break
        if up_s > begin_s:
            end_s += up_s - max(down_s, begin_s)
    return end_s
