"""Lets glibc keep the memory of chunks instead of giving it back after each one.

gRPC takes a fresh buffer of some MiB for every chunk. As long as glibc maps those anew, the kernel
clears their pages each time, which takes a fifth of the processor time of a stream of tensors.
"""

from __future__ import annotations

import ctypes
import os
import platform

# Of mallopt(3).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
# What glibc comes to by itself once a program has freed a block of 32 MiB, its upper limit.
_MMAP_THRESHOLD_BYTES = 32 << 20
_TRIM_THRESHOLD_BYTES = 2 * _MMAP_THRESHOLD_BYTES


def keep_freed_chunks() -> bool:
    """Sets both thresholds of this process; false where that is not for us to do.

    That is without glibc, and where the user has tuned it (`MALLOC_..._`, `GLIBC_TUNABLES`).
    """
    is_tuned = any(name.startswith("MALLOC_") for name in os.environ)
    if platform.libc_ver()[0] != "glibc" or is_tuned or "GLIBC_TUNABLES" in os.environ:
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
    )
