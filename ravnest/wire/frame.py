"""The unit that nodes exchange: what it is about, and the values it carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch

from ravnest.plan.identity import MicrobatchId

Scalar = bool | int | float | str | None


class FrameKind(IntEnum):
    """Every action a peer can ask for; a number outside this list is refused."""

    ACTIVATION = 1
    GRADIENT = 2
    EVALUATE = 3
    OUTPUT = 4
    EPOCH_END = 5
    SAVE = 6
    PHASE_END = 7
    RUN = 8
    RING_HEADER = 9
    RING_CHUNK = 10
    RING_VOTE = 11
    TARGETS = 12
    TIED_GRADIENTS = 13
    TIED_VALUES = 14
    GRADIENT_NORM = 15
    LEDGER = 16
    SETTLE = 17


class Codec(IntEnum):
    """How a tensor's values are laid out in bytes."""

    RAW = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT8 = 4
    INT4 = 5
    INT4_HADAMARD = 6
    INT8_HUFFMAN = 7


@dataclass(frozen=True, slots=True)
class Frame:
    """One message between two stages or two ring members.

    Attributes:
        kind: what it is.
        microbatch: which microbatch it belongs to, None when it is about none.
        attempt: 0 the first time a microbatch is sent, counted up by replays.
        weight_version: optimizer steps the sender's stage had made at its forward pass.
        tensors: by value name; any dtype, rank and stride.
        scalars: plain values by name: sizes that cross a cut, losses, counts.
        details: JSON-able data of small size: structures, fingerprints.
    """

    kind: FrameKind
    microbatch: MicrobatchId | None = None
    attempt: int = 0
    weight_version: int = 0
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
