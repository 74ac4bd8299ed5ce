"""The checksum of a tensor's bytes: finds what was lost, swapped, cut or overwritten on the way.

TCP and TLS guard against noise already; what is left are mistakes of programs: a buffer reused too
early, a chunk at another's place, a frame cut short. For that a CRC of every byte, at a few GB/s on
both ends, takes a third of all the processor time of a large frame. So blocks of 8 KiB are added up
as 64-bit words, as fast as memory can be read, and the CRC-32 is taken of the sums: it knows each
block's place. Any change within one word, and any block that moved, shows; words that changed
places within a block do not.
"""

from __future__ import annotations

import zlib

import numpy as np

_WORD = np.dtype("<u8")
_BLOCK_BYTES = 8 << 10
# Below it the calls would take longer than the bytes.
_MIN_SUMMED_BYTES = 32 << 10


def checksum(values: memoryview) -> int:
    """32 bits that depend on every byte; 0 for none.

    Args:
        values: flat bytes.
    """
    if values.nbytes < _MIN_SUMMED_BYTES:
        return zlib.crc32(values)
    end = values.nbytes - values.nbytes % _BLOCK_BYTES
    words = np.frombuffer(values[:end], dtype=_WORD)
    sums = words.reshape(-1, _BLOCK_BYTES // _WORD.itemsize).sum(axis=1, dtype=_WORD)
    return zlib.crc32(values[end:], zlib.crc32(sums.astype(_WORD, copy=False).tobytes()))
