"""The dtypes that travel, by their number on the wire; numbers are never given anew."""

from __future__ import annotations

import torch

_BY_NUMBER: dict[int, torch.dtype] = {
    1: torch.bool,
    2: torch.uint8,
    3: torch.int8,
    4: torch.int16,
    5: torch.int32,
    6: torch.int64,
    7: torch.uint16,
    8: torch.uint32,
    9: torch.uint64,
    10: torch.float16,
    11: torch.bfloat16,
    12: torch.float32,
    13: torch.float64,
    14: torch.complex32,
    15: torch.complex64,
    16: torch.complex128,
    17: torch.float8_e4m3fn,
    18: torch.float8_e5m2,
    19: torch.float8_e4m3fnuz,
    20: torch.float8_e5m2fnuz,
}
_NUMBERS = {dtype: number for number, dtype in _BY_NUMBER.items()}

DTYPES = tuple(_BY_NUMBER.values())


def number_of(dtype: torch.dtype) -> int | None:
    """The wire number of a dtype, None when it does not travel."""
    return _NUMBERS.get(dtype)


def dtype_of(number: int) -> torch.dtype | None:
    """The dtype of a wire number, None when there is no such number."""
    return _BY_NUMBER.get(number)
