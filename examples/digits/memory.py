"""Peak memory of this process, on every platform."""

from __future__ import annotations

import sys

import psutil


def peak_memory_bytes() -> int:
    """Largest resident set so far, in bytes."""
    info = psutil.Process().memory_info()
    if hasattr(info, "peak_wset"):  # Windows
        return int(info.peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
