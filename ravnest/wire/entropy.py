"""Bytes by how often each occurs (Huffman codes), without loss; knows no tensor and no block.

Whole steps of a scale are not used alike: the small ones are common, so that codes of unequal
length take less (Huffman 1952; after rounding, as Alistarh et al. 2017, "QSGD", do with changes of
weights). The codes are those of DEFLATE (RFC 1951) without its search for repetitions, of which
noise has none.
"""

from __future__ import annotations

import zlib

from ravnest.errors import ProtocolError

_RAW_STREAM = -15  # no header and no checksum of its own: a tensor has one
_LARGEST_BLOCKS = 9
_SHORTEST_CODE_BITS = 1


def shorten(values: memoryview) -> bytes | memoryview:
    """The bytes in fewer, or as they are where codes would not save any.

    Another build of zlib may make other codes; they give back the same bytes everywhere.
    """
    coder = zlib.compressobj(1, zlib.DEFLATED, _RAW_STREAM, _LARGEST_BLOCKS, zlib.Z_HUFFMAN_ONLY)
    coded = coder.compress(values) + coder.flush()
    return coded if len(coded) < values.nbytes else values


def least_bytes(num_bytes: int) -> int:
    """What so many bytes take at least: no code is shorter than a bit.

    It bounds what a peer's message makes of memory.
    """
    return -(-num_bytes * _SHORTEST_CODE_BITS // 8)


def lengthen(coded: memoryview, num_bytes: int) -> bytes | memoryview:
    """The inverse of `shorten`.

    Args:
        num_bytes: what there were; no more than that is ever made.

    Raises:
        ProtocolError: the codes are malformed, or do not give so many bytes.
    """
    if coded.nbytes == num_bytes:
        return coded
    decoder = zlib.decompressobj(_RAW_STREAM)
    try:
        values = decoder.decompress(coded, num_bytes + 1)
    except zlib.error as error:
        raise ProtocolError(f"{coded.nbytes} bytes of Huffman codes are damaged: {error}") from None
    if len(values) != num_bytes or not decoder.eof or decoder.unused_data:
        raise ProtocolError(
            f"{coded.nbytes} bytes of Huffman codes hold {len(values)} bytes or more, "
            f"expected {num_bytes} and the end of the codes"
        )
    return values
