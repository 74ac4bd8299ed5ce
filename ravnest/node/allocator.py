"""Decides what the C library of a node's process does with freed memory; nobody else sets it.

glibc maps large blocks apart from its heap, so that freeing them frees their pages, but raises the
size from which it does so with every such block it frees, up to 32 MiB. From then on activations
lie in the heap, with holes between them. Two settings replace that drift:

- `return_freed_memory`, where the plan leaves no room for the holes. Measured with ResNet-50 on a
  virtual machine, half a stage each: peaks of 1.43 and 0.86 GB where the threshold drifts, 1.20 and
  0.75 GB where it is set once and for all; tensors and runtime take 1.14 and 0.70. But every large
  tensor then costs page faults, there two thirds more processor time, and so does every chunk
  that the transport receives: 2.5 processor seconds per GB instead of 1.7, both ends together.
- `keep_freed_memory`, everywhere else: what glibc drifts to at most, but from the start; the end
  of the heap is not given back after every chunk either. 1.45 processor seconds per GB.
"""

from __future__ import annotations

import ctypes
import os
import sys

import torch

from ravnest.plan.model import NodePlan

# Options of mallopt, as in malloc.h.
_MMAP_THRESHOLD = -3
_TRIM_THRESHOLD = -1
# To return: glibc's own at first, small enough that what is left in the heap does not matter, and
# large enough that small tensors never cost a system call.
_RETURNING = {_MMAP_THRESHOLD: 128 << 10, _TRIM_THRESHOLD: 16 << 20}
# To keep: the largest that glibc comes to by itself.
_KEEPING = {_MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
_WITH_HOLES = 1.35
"""Peak over the plan's, at most seen, where the heap keeps what is freed."""

_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def settle_freed_memory(plan: NodePlan, device: torch.device, is_returned: bool | None) -> None:
    """Returns or keeps it for the rest of the process.

    Args:
        is_returned: what the script says; None: where the plan is tight. Where tensors are not in
            this process's memory it is always kept.
    """
    wanted = is_tight(plan) if is_returned is None else is_returned
    if wanted and device.type == "cpu":
        return_freed_memory()
    else:
        keep_freed_memory()


def is_tight(plan: NodePlan) -> bool:
    """Whether the node's memory could be exceeded by holes in the heap."""
    return plan.needed_bytes * _WITH_HOLES > plan.memory_bytes


def return_freed_memory() -> bool:
    """Has freed tensors leave this process at once; whether that was possible and wanted.

    Nothing happens where the C library is another than glibc, or where the environment already
    sets its thresholds or another allocator.
    """
    return _fix(_RETURNING)


def keep_freed_memory() -> bool:
    """Has freed memory be used again without asking the system; as `return_freed_memory`."""
    return _fix(_KEEPING)


def _fix(thresholds: dict[int, int]) -> bool:
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(library.mallopt(*option) for option in thresholds.items())
