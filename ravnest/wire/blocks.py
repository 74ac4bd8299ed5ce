"""Values as whole steps of a scale per block: INT8, INT4, and INT4 of a rotated block.

A block is so many neighbours in memory order; its scale is a float32, its largest magnitude over
the number of steps. Eight and four bits absmax-scaled by block are those of Dettmers et al. 2022
("8-bit Optimizers via Block-wise Quantization") and 2023 (QLoRA), with even steps.

A rotated block is multiplied by random-looking signs and a Walsh-Hadamard matrix before it is
rounded, and by the inverse after: both are orthogonal, so no energy is lost, and one large value no
longer takes all the steps from its neighbours (Ashkboos et al. 2024, "QuaRot"; for activations of
pipelines He et al. 2025, "TAH-Quant"). The signs are a bent function (Rothaus 1976): neither a
constant block nor a single value is any rotated value's favourite, so both come back exactly.

Defined for every input: a block with a NaN or an infinity in it comes back as NaN throughout, so
that a fault shows; float64 beyond float32 counts as infinite. A block of zeros comes back as zeros,
and so does one whose scale would be no normal float32: of magnitudes below 2^-119 (INT8) or 2^-123
(INT4, also rotated). What is finite never becomes infinite.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from ravnest.wire.frame import Codec

_SCALE_BYTES = 4
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How a blockwise codec lays out values.

    Attributes:
        size: values in a block.
        top: steps from zero to the block's largest magnitude.
        bits: of a value; with 4, two of them share a byte, the first in its lower half.
        is_rotated: whether values are of the rotated block; then the last block is sent whole.
    """

    size: int
    top: int
    bits: int
    is_rotated: bool = False

    def num_blocks(self, numel: int) -> int:
        """Blocks of so many values; the last may be short."""
        return -(-numel // self.size)

    def num_sent(self, numel: int) -> int:
        """Values that are sent of so many."""
        return self.num_blocks(numel) * self.size if self.is_rotated else numel

    def num_bytes(self, numel: int) -> int:
        """Bytes that so many values take."""
        return self.num_scale_bytes(numel) + -(-self.num_sent(numel) * self.bits // 8)

    def num_scale_bytes(self, numel: int) -> int:
        """Those of them that are scales; they come first."""
        return _SCALE_BYTES * self.num_blocks(numel)


BLOCK_FORMATS = {
    Codec.INT8: BlockFormat(256, 127, 8),
    Codec.INT4: BlockFormat(64, 7, 4),
    Codec.INT4_HADAMARD: BlockFormat(64, 7, 4, is_rotated=True),
}


def quantise(values: torch.Tensor, layout: BlockFormat) -> torch.Tensor:
    """The scales of all blocks as bytes, then the values; a flat uint8 tensor.

    Args:
        values: floating, of any shape and strides.
    """
    flat = values.reshape(-1).to(torch.float32)
    blocks = _in_blocks(flat, layout.size)
    if layout.is_rotated:
        blocks, unit = _rotated(blocks)
    largest = blocks.abs().amax(dim=1)
    scales = largest / layout.top
    scales = _sendable(scales * unit if layout.is_rotated else scales, largest)
    steps = _steps(blocks, largest, layout.top, scales > 0)
    sent = steps.to(torch.int8).view(-1)[: layout.num_sent(flat.numel())]
    bytes_ = _paired(sent) if layout.bits == 4 else sent.view(torch.uint8)
    return torch.cat([scales.view(torch.uint8), bytes_])


def dequantise(
    wire: torch.Tensor, dtype: torch.dtype, layout: BlockFormat, numel: int
) -> torch.Tensor:
    """The inverse of `quantise`, up to its rounding; a new flat tensor of `numel` values.

    The same bytes give the same values on every machine: all sums are of whole numbers.

    Args:
        wire: bytes as received, uint8.
    """
    num_blocks, num_sent = layout.num_blocks(numel), layout.num_sent(numel)
    scales = wire[: num_blocks * _SCALE_BYTES].view(torch.float32)
    bytes_ = wire[num_blocks * _SCALE_BYTES :]
    steps = _unpaired(bytes_)[:num_sent] if layout.bits == 4 else bytes_.view(torch.int8)
    wide = dtype if dtype is torch.float64 else torch.float32
    restored = _in_blocks(steps, layout.size).to(wide)
    if layout.is_rotated:
        restored = restored @ _rotation(layout.size, wide, wire.device).T
    restored = restored.mul_(scales.to(wide)[:, None]).view(-1)[:numel]
    top = torch.finfo(torch.float32 if dtype is torch.float64 else dtype).max
    return restored.clamp_(-top, top).to(dtype)


def _in_blocks(flat: torch.Tensor, size: int) -> torch.Tensor:
    """One block per row; the last is filled up with zeros."""
    if padding := -flat.numel() % size:
        flat = torch.nn.functional.pad(flat, (0, padding))
    return flat.view(-1, size)


def _rotated(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks over their largest magnitude, rotated; and that magnitude, as sums might overflow."""
    unit = blocks.abs().amax(dim=1)
    inverse = torch.where(unit >= _TINY, 1 / unit, 0.0)
    rotation = _rotation(blocks.shape[1], blocks.dtype, blocks.device)
    return (blocks * inverse[:, None]) @ rotation, unit


def _steps(
    blocks: torch.Tensor, largest: torch.Tensor, top: int, has_scale: torch.Tensor
) -> torch.Tensor:
    """Each value in whole steps of its block's scale; 0 in blocks that have none."""
    inverse = torch.where(has_scale, top / largest, 0.0)
    steps = blocks * inverse[:, None]
    if not bool(has_scale.all()):
        steps.nan_to_num_(0.0, 0.0, 0.0)
    return steps.round_().clamp_(-top, top)


def _sendable(scales: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
    """Scales that are normal or zero, of which NaN says that the block is not finite."""
    finite = torch.where(scales < _TINY, 0.0, scales).clamp_(max=torch.finfo(torch.float32).max)
    return torch.where(largest.isfinite(), finite, torch.nan)


def _paired(steps: torch.Tensor) -> torch.Tensor:
    """Two's complement nibbles, two to a byte."""
    even = _in_blocks(steps, 2).view(torch.uint8)
    return (even[:, 0] & 0x0F) | (even[:, 1] << 4)


def _unpaired(bytes_: torch.Tensor) -> torch.Tensor:
    signed = bytes_.view(torch.int8)
    return torch.stack([(signed << 4) >> 4, signed >> 4], dim=1).view(-1)


@functools.cache
def _rotation(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Signs times the orthonormal Walsh-Hadamard matrix, of an even power of two; orthogonal."""
    half = size.bit_length() // 2
    index = torch.arange(size)
    signs = _parity_signs((index >> half) & index & ((1 << half) - 1), half)
    hadamard = _parity_signs(index[:, None] & index[None, :], 2 * half) * 2.0**-half
    return (signs[:, None] * hadamard).to(device, dtype)


def _parity_signs(bits: torch.Tensor, num_bits: int) -> torch.Tensor:
    """-1 where an odd number of bits is set, else 1."""
    parity = torch.zeros_like(bits)
    for place in range(num_bits):
        parity ^= (bits >> place) & 1
    return 1.0 - 2.0 * parity
