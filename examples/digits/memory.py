"""Peak memory of this process, on every platform."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil


def peak_memory_bytes() -> int:
    """Largest resident set of this program so far, in bytes.

    Linux keeps `ru_maxrss` from before the program was started, when the process was a copy of its
    parent; so there it is the field that starts anew.
    """
    status = Path("/proc/self/status")
    if status.exists():
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    info = psutil.Process().memory_info()
    if hasattr(info, "peak_wset"):  # Windows
        return int(info.peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
