"""Has the C library give freed tensors back to the system at once.

glibc maps large blocks apart from its heap, so that freeing them frees their pages, but raises the
size from which it does so with every such block it frees, up to 32 MiB. From then on activations
lie in the heap, with holes between them: measured, a quarter more memory than tensors for
ResNet-50, and a peak that nobody could predict. A threshold that is set once stays where it is.
"""

from __future__ import annotations

import ctypes
import os
import sys

# Options of mallopt, as in malloc.h. The sizes are glibc's own at first: small enough that what is
# left in the heap does not matter, large enough that small tensors never cost a system call.
_MMAP_THRESHOLD = (-3, 128 << 10)
_TRIM_THRESHOLD = (-1, 16 << 20)
_OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def return_freed_memory() -> bool:
    """Fixes the threshold for this process; whether that was possible and wanted.

    Nothing happens where the C library is another than glibc, or where the environment already
    sets its thresholds or another allocator.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _OWN_SETTINGS):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(library.mallopt(*option) for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
