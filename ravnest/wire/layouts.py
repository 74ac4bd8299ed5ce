"""How each codec lays out values: for which dtypes, in how many bytes, there and back."""

from __future__ import annotations

import torch

from ravnest.wire.blocks import BLOCK_FORMATS, BlockFormat, dequantise, quantise
from ravnest.wire.casts import EXPONENT_LIMIT, scaled_to, to_float16
from ravnest.wire.entropy import least_bytes, lengthen, shorten
from ravnest.wire.frame import Codec

_RAW, _FLOAT16 = Codec.RAW, Codec.FLOAT16
_CASTS = {Codec.FLOAT16: torch.float16, Codec.BFLOAT16: torch.bfloat16}
_WIDE = frozenset({torch.float32, torch.float64})
_FLOATING = _WIDE | {torch.float16, torch.bfloat16}
_SHORTENED = {Codec.INT8_HUFFMAN: BLOCK_FORMATS[Codec.INT8]}
"""The blocks of codecs that shorten steps by how often they occur; their bytes depend on values."""


def block_format(codec: Codec) -> BlockFormat | None:
    """How a blockwise codec rounds; None for others."""
    return BLOCK_FORMATS.get(codec) or _SHORTENED.get(codec)


def codec_for(dtype: torch.dtype, wanted: Codec) -> Codec:
    """The codec a tensor of that dtype really gets when `wanted` is asked for.

    Casts are for float32 and float64, blocks for float16 and bfloat16 too; every other dtype is as
    small already, or would lose its meaning, and travels raw.
    """
    if wanted is _RAW:
        return _RAW
    return wanted if dtype in (_FLOATING if block_format(wanted) else _WIDE) else _RAW


def is_valid_exponent(dtype: torch.dtype, codec: Codec, exponent: int) -> bool:
    """Whether a peer may state this scale."""
    return exponent == 0 if codec is not _FLOAT16 else abs(exponent) <= EXPONENT_LIMIT[dtype]


def wire_bytes(dtype: torch.dtype, codec: Codec, numel: int) -> int:
    """Bytes that `numel` values of `dtype` take on the wire; at most, where values decide."""
    if (layout := block_format(codec)) is not None:
        return layout.num_bytes(numel)
    return numel * _CASTS.get(codec, dtype).itemsize


def least_wire_bytes(dtype: torch.dtype, codec: Codec, numel: int) -> int:
    """Bytes that they take at least: fewer than `wire_bytes` where values decide."""
    most = wire_bytes(dtype, codec, numel)
    if (layout := _SHORTENED.get(codec)) is None:
        return most
    scales = layout.num_scale_bytes(numel)
    return scales + least_bytes(most - scales)


def shrink(values: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, int]:
    """Values as they lie on the wire, and the exponent of the power of two they were divided by.

    Errors: `to_float16` says that of FLOAT16. BFLOAT16: relatively 2^-8 at most, and magnitudes
    beyond 3.39e38 become infinite. INT8 and INT4: 1/254 and 1/14 of the largest magnitude of the
    block. INT4_HADAMARD: 1/14 of the largest magnitude of the rotated block, as a root mean square
    over the block; that magnitude is the block's Euclidean norm at most, an eighth of it at least.
    INT8_HUFFMAN: that of INT8.
    """
    if (layout := _SHORTENED.get(codec)) is not None:
        return _shortened(quantise(values, layout), layout.num_scale_bytes(values.numel())), 0
    if (layout := BLOCK_FORMATS.get(codec)) is not None:
        return quantise(values, layout), 0
    if codec is Codec.BFLOAT16:
        return values.to(torch.bfloat16), 0
    return to_float16(values)


def restore(
    wire: torch.Tensor, dtype: torch.dtype, codec: Codec, exponent: int, numel: int
) -> torch.Tensor:
    """The inverse of `shrink`, up to its rounding; a new flat tensor of `numel` values.

    Args:
        wire: bytes as received, uint8.

    Raises:
        ProtocolError: they are no bytes that `shrink` makes.
    """
    if (layout := _SHORTENED.get(codec)) is not None:
        whole = _lengthened(wire, layout.num_scale_bytes(numel), layout.num_bytes(numel))
        return dequantise(whole, dtype, layout, numel)
    if (layout := BLOCK_FORMATS.get(codec)) is not None:
        return dequantise(wire, dtype, layout, numel)
    return scaled_to(wire.view(_CASTS[codec]), dtype, exponent)


def _shortened(wire: torch.Tensor, num_scale_bytes: int) -> torch.Tensor:
    """The scales as they are, the steps after them shortened."""
    scales, steps = wire[:num_scale_bytes], wire[num_scale_bytes:].cpu()
    if not steps.numel():
        return wire
    coded = torch.frombuffer(bytearray(shorten(steps.numpy().data)), dtype=torch.uint8)
    return torch.cat([scales.cpu(), coded])


def _lengthened(wire: torch.Tensor, num_scale_bytes: int, num_bytes: int) -> torch.Tensor:
    coded = wire[num_scale_bytes:].numpy().data
    values = bytearray(lengthen(coded, num_bytes - num_scale_bytes))
    return torch.cat([wire[:num_scale_bytes], torch.frombuffer(values, dtype=torch.uint8)])
