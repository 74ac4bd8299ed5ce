"""The codecs that make values smaller: bfloat16, and float16 with one power of two per tensor.

Both round to nearest even and keep NaN and infinities. They apply to float32 and float64; every
other dtype is as small already, or would lose its meaning, and travels raw.
"""

from __future__ import annotations

import math

import torch

from ravnest.wire.frame import Codec

WIRE_DTYPE = {Codec.FLOAT16: torch.float16, Codec.BFLOAT16: torch.bfloat16}

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


def shrink(values: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, int]:
    """Values as the codec's dtype, and the exponent of the power of two they were divided by.

    FLOAT16: the relative error of a value is at most 2^-11 down to 2^-28 times the largest finite
    magnitude of the tensor; smaller ones lose precision gradually, as float16 does, down to
    zero. BFLOAT16: at most 2^-8, and magnitudes beyond 3.39e38 become infinite.
    """
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


def restore(small: torch.Tensor, dtype: torch.dtype, exponent: int) -> torch.Tensor:
    """The inverse of `shrink`, up to its rounding; a new tensor."""
    values = small.to(dtype)
    return values.mul_(2.0**exponent) if exponent else values


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
    return float(restore(value.to(torch.float16), dtype, exponent))
