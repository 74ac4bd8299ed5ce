"""Numbers for people: three digits that count, and a unit."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def number(value: float) -> str:
    """`1,204`, `84.2`, `3.10`, `0.0123`."""
    if value == 0:
        return "0"
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.0995 else f"{value:.3g}"


def size(num_bytes: float) -> str:
    """`5.20 GB`, in decimal units as node_configs.json has them."""
    for scale, unit in _BYTES:
        if abs(num_bytes) >= scale * 0.9995:
            return f"{number(num_bytes / scale)} {unit}"
    return f"{num_bytes:.0f} B"


def duration(seconds: float) -> str:
    """`312 ms`, `1.24 s`."""
    if seconds == 0:
        return "0 s"
    for scale, unit in _SECONDS:
        if abs(seconds) >= scale * 0.9995:
            return f"{number(seconds / scale)} {unit}"
    return f"{number(seconds * 1e6)} us"


def percent(share: float) -> str:
    """`83 %`; what is not quite nothing or not quite all is not said to be."""
    points = 100 * share
    if 0 < points < 0.5:
        return "< 1 %"
    if 99.5 <= points < 100:
        return "> 99 %"
    return f"{points:,.0f} %"


def factor(before: float, after: float) -> str:
    """`1.26x`; nothing where there is nothing to compare with."""
    return f"{after / before:.3g}x" if before > 0 else ""


def count(number_of: int, noun: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{number_of:,} {noun}" if number_of == 1 else f"{number_of:,} {noun}s"


def nodes(node_ids: Iterable[int]) -> str:
    """`node 3`, `nodes 1, 4-9, 12`."""
    ids = sorted(node_ids)
    starts = [ids[0], *(after for before, after in pairwise(ids) if after != before + 1)]
    ends = [*(before for before, after in pairwise(ids) if after != before + 1), ids[-1]]
    runs = []
    for start, end in zip(starts, ends, strict=True):
        between = "-" if end > start + 1 else ", "
        runs.append(str(start) if start == end else f"{start}{between}{end}")
    return f"{'node' if len(ids) == 1 else 'nodes'} {', '.join(runs)}"
