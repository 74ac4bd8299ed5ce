"""How much memory is free for tensors on a device, and which limit says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
# Of a group: its limit, what it uses, and the name of the file cache within that it can give up.
_UNIFIED = ("memory.max", "memory.current", "inactive_file")
_LEGACY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory that can still be had.

    Attributes:
        num_bytes: how much.
        source: what says so, in words.
    """

    num_bytes: int
    source: str


def available_memory_bytes(device: torch.device) -> int | None:
    """Free memory for tensors on a device; None where the device does not say."""
    free = free_memory(device)
    return None if free is None else free.num_bytes


def free_memory(device: torch.device) -> FreeMemory | None:
    """Free memory for tensors on a device; None where the device does not say.

    On the CPU the least of what the system calls available and of what each control group around
    this process (its container) may still use.

    Raises:
        RuntimeError, AssertionError: the device is not there.
    """
    if device.type == "cpu":
        system = FreeMemory(psutil.virtual_memory().available, "what the system calls available")
        return min((system, *_left_in_groups()), key=lambda free: free.num_bytes)
    if device.type == "mps":
        left = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return FreeMemory(max(0, left), "what Metal recommends to use at most")
    backend = getattr(torch, device.type, None)
    ask = getattr(backend, "mem_get_info", None)
    if ask is None:
        return None
    return FreeMemory(int(ask(device)[0]), f"what the driver of {device} says")


def _left_in_groups(
    root: Path = _CGROUP_ROOT, own_groups: Path = _OWN_CGROUPS
) -> Iterator[FreeMemory]:
    """What each limited control group around this process may still use; none but on Linux."""
    for group, files in _groups(root, own_groups):
        # ValueError: "max", there is no limit. OSError: no such group in this namespace.
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((group / name).read_text()) for name in files[:2])
            cache = _statistic(group / "memory.stat", files[2])
            left = max(0, limit - max(0, used - cache))
            yield FreeMemory(left, f"the limit of {limit} bytes in {group / files[0]}, less use")


def _groups(root: Path, own_groups: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The memory groups of this process, from the innermost to the root."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, files = root, _UNIFIED
        elif "memory" in controllers.split(","):
            mount, files = root / "memory", _LEGACY
        else:
            continue
        group = mount / path.lstrip("/")
        while True:
            yield group, files
            if group == mount:
                break
            group = group.parent


def _statistic(file: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        fields = dict(line.split(" ", 1) for line in file.read_text().splitlines())
        return int(fields.get(name, 0))
    return 0
