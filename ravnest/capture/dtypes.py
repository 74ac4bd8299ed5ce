"""Names of the dtypes that may stand in a stage file."""

from __future__ import annotations

import torch

from ravnest.capture.strict_json import Field
from ravnest.errors import CaptureError

_NAMES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 "
    "complex64 complex128 float8_e4m3fn float8_e5m2"
)
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES.split()}


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32; CaptureError for a dtype no stage file may hold."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise CaptureError(
            f"dtype {dtype} cannot be put into a stage file", hint=f"use one of {sorted(_DTYPES)}"
        )
    return name


def dtype_of(field: Field) -> torch.dtype:
    """The dtype of a name in a file; PlanFileError for an unknown one."""
    name = field.text()
    if name not in _DTYPES:
        field.fail(f"unknown dtype {name!r}")
    return _DTYPES[name]
