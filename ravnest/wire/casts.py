"""The casts that make values smaller: bfloat16, and float16 with one power of two per tensor.

They round to nearest even and keep NaN and infinities. A gradient's magnitudes are often far below
float16's, and under a loss scale above them; a power of two per tensor moves them to where float16
is dense without rounding anything (Micikevicius et al. 2018, "Mixed Precision Training", scale a
whole loss for that).
"""

from __future__ import annotations

import math

import torch

# The largest magnitude lands in [2^14, 2^15): a bit below float16's maximum of 65504, so
# that rounding up cannot overflow, and far above its smallest normal number of 2^-14.
_TOP_EXPONENT = 15
# The largest float16 under 2^15.
_BELOW_TOP = 32752.0

# Exponents whose power of two, and its inverse, is a normal number of the dtype.
EXPONENT_LIMIT = {torch.float32: 126, torch.float64: 1022}


def to_float16(values: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Float16 values, and the exponent of the power of two they were divided by.

    The relative error of a value is at most 2^-11 down to 2^-28 times the largest finite magnitude
    of the tensor; smaller ones lose precision gradually, as float16 does, down to zero.
    """
    largest = _largest_finite(values)
    if largest == 0.0:
        return values.to(torch.float16), 0
    limit = EXPONENT_LIMIT[values.dtype]
    exponent = max(-limit, min(limit, math.frexp(largest)[1] - _TOP_EXPONENT))
    scaled = (values * 2.0**-exponent).to(torch.float16)
    if math.isinf(_rounded(largest, exponent, values.dtype)):
        # At the dtype's very top rounding up would make it infinite; there it is rounded down.
        bounded = scaled.clamp(-_BELOW_TOP, _BELOW_TOP)
        scaled = torch.where(values.isfinite(), bounded, scaled)
    return scaled, exponent


def scaled_to(small: torch.Tensor, dtype: torch.dtype, exponent: int) -> torch.Tensor:
    """Values of a small dtype times two to a power, in another; a new tensor."""
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
    return float(scaled_to(value.to(torch.float16), dtype, exponent))
