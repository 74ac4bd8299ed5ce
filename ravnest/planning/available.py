"""How much memory is free on this machine, as far as it can be told without another dependency."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def available_memory_bytes(device: torch.device) -> int | None:
    """Free memory for tensors on a device; None where the system does not say (Windows).

    On the CPU the smallest of what the kernel calls available, what the container may use in all,
    and the machine's memory.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        fields = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        yield int(fields["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError):  # ValueError: "max", there is no limit
        yield int(_CONTAINER_LIMIT.read_text())
    with contextlib.suppress(AttributeError, OSError, ValueError):
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
