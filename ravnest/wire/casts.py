"""The codecs that make values smaller: bfloat16, float16 with one power of two per tensor, int8.

The casts round to nearest even and keep NaN and infinities. INT8 has a float32 scale per block of
values, the block's largest magnitude over 127; a block with a NaN or an infinity in it comes back
as NaN throughout. All apply to float32 and float64; every other dtype is as small already, or
would lose its meaning, and travels raw.
"""

from __future__ import annotations

import math

import torch

from ravnest.wire.frame import Codec

WIRE_DTYPE = {Codec.FLOAT16: torch.float16, Codec.BFLOAT16: torch.bfloat16}

INT8_BLOCK = 256
_INT8_TOP = 127.0
_SCALE_BYTES = 4

# The largest magnitude lands in [2^14, 2^15): a bit below float16's maximum of 65504, so
# that rounding up cannot overflow, and far above its smallest normal number of 2^-14.
_TOP_EXPONENT = 15
# The largest float16 under 2^15.
_BELOW_TOP = 32752.0

# Exponents whose power of two, and its inverse, is a normal number of the dtype.
_EXPONENT_LIMIT = {torch.float32: 126, torch.float64: 1022}


def codec_for(dtype: torch.dtype, wanted: Codec) -> Codec:
    """The codec a tensor of that dtype really gets when `wanted` is asked for."""
    return wanted if dtype in _EXPONENT_LIMIT else Codec.RAW


def is_valid_exponent(dtype: torch.dtype, codec: Codec, exponent: int) -> bool:
    """Whether a peer may state this scale."""
    return exponent == 0 if codec is not Codec.FLOAT16 else abs(exponent) <= _EXPONENT_LIMIT[dtype]


def wire_bytes(dtype: torch.dtype, codec: Codec, numel: int) -> int:
    """Bytes that `numel` values of `dtype` take on the wire."""
    if codec is Codec.INT8:
        return numel + _SCALE_BYTES * -(-numel // INT8_BLOCK)
    return numel * WIRE_DTYPE.get(codec, dtype).itemsize


def shrink(values: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, int]:
    """Values as they lie on the wire, and the exponent of the power of two they were divided by.

    FLOAT16: the relative error of a value is at most 2^-11 down to 2^-28 times the largest finite
    magnitude of the tensor; smaller ones lose precision gradually, as float16 does, down to
    zero. BFLOAT16: at most 2^-8, and magnitudes beyond 3.39e38 become infinite. INT8: the error is
    at most 1/254 of the largest magnitude among the INT8_BLOCK neighbours in memory order.
    """
    if codec is Codec.INT8:
        return _quantise(values), 0
    if codec is Codec.BFLOAT16:
        return values.to(torch.bfloat16), 0
    largest = _largest_finite(values)
    if largest == 0.0:
        return values.to(torch.float16), 0
    limit = _EXPONENT_LIMIT[values.dtype]
    exponent = max(-limit, min(limit, math.frexp(largest)[1] - _TOP_EXPONENT))
    scaled = (values * 2.0**-exponent).to(torch.float16)
    if math.isinf(_rounded(largest, exponent, values.dtype)):
        # At the dtype's very top rounding up would make it infinite; there it is rounded down.
        bounded = scaled.clamp(-_BELOW_TOP, _BELOW_TOP)
        scaled = torch.where(values.isfinite(), bounded, scaled)
    return scaled, exponent


def restore(
    wire: torch.Tensor, dtype: torch.dtype, codec: Codec, exponent: int, numel: int
) -> torch.Tensor:
    """The inverse of `shrink`, up to its rounding; a new flat tensor of `numel` values.

    Args:
        wire: bytes as received, uint8.
    """
    if codec is Codec.INT8:
        return _dequantise(wire, dtype, numel)
    return _scaled(wire.view(WIRE_DTYPE[codec]), dtype, exponent)


def _scaled(small: torch.Tensor, dtype: torch.dtype, exponent: int) -> torch.Tensor:
    values = small.to(dtype)
    return values.mul_(2.0**exponent) if exponent else values


def _quantise(values: torch.Tensor) -> torch.Tensor:
    """Scales of all blocks as bytes, then one byte per value; a flat uint8 tensor."""
    flat = values.reshape(-1).to(torch.float32)
    padding = -flat.numel() % INT8_BLOCK
    blocks = torch.nn.functional.pad(flat, (0, padding)).view(-1, INT8_BLOCK)
    scales = blocks.abs().amax(dim=1) / _INT8_TOP
    scales = torch.where(scales.isfinite(), scales, torch.nan)
    # At the dtype's very top the rounded scale would make the largest value infinite.
    scales = torch.where(
        (scales * _INT8_TOP).isinf(), scales.nextafter(scales.new_zeros(())), scales
    )
    # A block of zeros, or of values whose scale would underflow, is all zero.
    inverse = torch.where(scales > 0, 1 / scales, 0.0).nan_to_num_(0.0, 0.0, 0.0)
    steps = (blocks.nan_to_num(0.0, 0.0, 0.0) * inverse[:, None]).round_()
    bytes_ = steps.clamp_(-_INT8_TOP, _INT8_TOP).to(torch.int8).view(torch.uint8).view(-1)
    return torch.cat([scales.view(torch.uint8), bytes_[: flat.numel()]])


def _dequantise(wire: torch.Tensor, dtype: torch.dtype, numel: int) -> torch.Tensor:
    num_blocks = -(-numel // INT8_BLOCK)
    scales = wire[: num_blocks * _SCALE_BYTES].view(torch.float32)
    steps = wire[num_blocks * _SCALE_BYTES :].view(torch.int8)
    blocks = torch.nn.functional.pad(steps, (0, -numel % INT8_BLOCK)).view(-1, INT8_BLOCK)
    return (blocks.to(dtype) * scales.to(dtype)[:, None]).view(-1)[:numel]


def _largest_finite(values: torch.Tensor) -> float:
    if values.numel() == 0:
        return 0.0
    low, high = torch.aminmax(values)
    largest = max(abs(low.item()), abs(high.item()))
    if math.isfinite(largest) and not math.isnan(low.item()):
        return largest
    finite = values[values.isfinite()]
    return _largest_finite(finite) if finite.numel() else 0.0


def _rounded(largest: float, exponent: int, dtype: torch.dtype) -> float:
    """What the largest value would come back as."""
    value = torch.tensor(largest, dtype=dtype) * 2.0**-exponent
    return float(_scaled(value.to(torch.float16), dtype, exponent))
