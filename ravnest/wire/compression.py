"""What `compression=...` names: a codec per role, and the share of the bytes that is left.

In wire, so that nodes, which apply it, and planning, which predicts with it, mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ravnest.errors import ConfigError
from ravnest.wire.frame import Codec
from ravnest.wire.layouts import wire_bytes

_MANY = 1 << 16  # values; a multiple of every block


@dataclass(frozen=True, slots=True)
class Compression:
    """Codecs by role. A gradient never travels with less precision than an activation."""

    activation: Codec
    gradient: Codec


COMPRESSIONS: dict[bool | str, Compression] = {
    False: Compression(Codec.RAW, Codec.RAW),
    True: Compression(Codec.FLOAT16, Codec.FLOAT16),
    "fp16": Compression(Codec.FLOAT16, Codec.FLOAT16),
    "bf16": Compression(Codec.BFLOAT16, Codec.BFLOAT16),
    "int8": Compression(Codec.INT8, Codec.BFLOAT16),
    "int4": Compression(Codec.INT4, Codec.INT8),
    "int4-hadamard": Compression(Codec.INT4_HADAMARD, Codec.INT8),
}


def parse_compression(compression: bool | str) -> Compression:
    """The codecs that `Node(compression=...)` names."""
    if isinstance(compression, (bool, str)) and compression in COMPRESSIONS:
        return COMPRESSIONS[compression]
    choices = ", ".join(repr(choice) for choice in COMPRESSIONS)
    raise ConfigError(f"compression={compression!r} is unknown; expected one of {choices}")


def float32_share(codec: Codec) -> float:
    """Bytes on the wire over bytes in memory, of large float32 tensors."""
    return wire_bytes(torch.float32, codec, _MANY) / (_MANY * torch.float32.itemsize)
