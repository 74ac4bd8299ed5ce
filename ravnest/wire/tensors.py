"""Tensors to buffers and back, with where each lies in the payload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from ravnest.errors import ProtocolError
from ravnest.wire import limits
from ravnest.wire.checksum import checksum
from ravnest.wire.dtypes import dtype_of, number_of
from ravnest.wire.frame import Codec
from ravnest.wire.layouts import (
    codec_for,
    is_valid_exponent,
    least_wire_bytes,
    restore,
    shrink,
    wire_bytes,
)
from ravnest.wire.orders import Order, checked_order, laid_out, order_of
from ravnest.wire.pb import frame_pb2

ALIGNMENT = 64

# A stage gets the same few descriptions over and over, and a frame's are what its checks cost.
_NUM_REMEMBERED = 1024
# What is unknown in a description counts too, so that a stranger cannot have much remembered.
_MAX_REMEMBERED_BYTES = 1 << 10

_CODECS = {int(codec): codec for codec in Codec}
# The member of an enumeration is looked up by a call each time.
_RAW = Codec.RAW
# Those that numpy knows, and Python's memoryviews.
_NATIVE = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.float32, torch.float64}
)


class _Entry(NamedTuple):
    """A description as it was read: each field of protobuf's is a call."""

    name: str
    dtype: torch.dtype
    codec: Codec
    shape: tuple[int, ...]
    order: Order
    numel: int
    offset: int
    num_bytes: int
    scale_exponent: int


def pack(
    tensors: Mapping[str, torch.Tensor], codec: Codec
) -> tuple[list[frame_pb2.Tensor], list[memoryview], int]:
    """Descriptions, buffers in order (padding included), and their bytes together.

    A CPU tensor without gaps is not copied with the RAW codec: its buffer is its own storage.
    """
    entries: list[frame_pb2.Tensor] = []
    buffers: list[memoryview] = []
    end = 0
    for name, tensor in tensors.items():
        entry, buffer = _pack_one(name, tensor, codec)
        if buffer.nbytes:
            if padding := -end % ALIGNMENT:
                buffers.append(memoryview(bytes(padding)))
            entry.offset = end + padding
            buffers.append(buffer)
            end = entry.offset + buffer.nbytes
        entries.append(entry)
    return entries, buffers, end


def _pack_one(name: str, tensor: torch.Tensor, codec: Codec) -> tuple[frame_pb2.Tensor, memoryview]:
    number = number_of(tensor.dtype)
    if number is None or tensor.layout is not torch.strided or tensor.is_meta:
        raise ProtocolError(
            f"tensor {name!r} is {tensor.dtype}, {tensor.layout}, on {tensor.device}; "
            f"expected a strided tensor with values, of a dtype in ravnest.wire.dtypes"
        )
    _check_rank(name, tensor.dim())
    used = codec_for(tensor.dtype, codec)
    # Detached first: what is sent takes part in no graph of this process.
    values, exponent = tensor.detach() if tensor.requires_grad else tensor, 0
    if order := order_of(values):
        values = values.permute(order)
    if used is not _RAW:
        values, exponent = shrink(values, used)
    buffer = _bytes_of(values)
    entry = frame_pb2.Tensor(
        name=name,
        dtype=number,
        codec=int(used),  # protobuf takes two microseconds to see that a member is a number
        shape=tensor.shape,
        num_bytes=buffer.nbytes,
        checksum=checksum(buffer),
    )
    if exponent:
        entry.scale_exponent = exponent
    if order:
        entry.order.extend(order)
    return entry, buffer


def _bytes_of(values: torch.Tensor) -> memoryview:
    if values.numel() == 0:
        return memoryview(b"")
    is_plain = values.is_cpu and values.is_contiguous() and not values.is_neg()
    if is_plain and values.dim() and values.dtype in _NATIVE:
        return values.numpy().data.cast("B")  # as below, in half the time
    # Lazily conjugated or negated views have other bytes than values.
    plain = _on_host(values.resolve_conj().resolve_neg()).contiguous()
    return memoryview(plain.view(-1).view(torch.uint8).numpy().data)


def _on_host(values: torch.Tensor) -> torch.Tensor:
    """The values in the host's memory; from CUDA in pinned memory, several times as fast."""
    if values.device.type != "cuda":
        return values.cpu()
    copy = values.to("cpu", non_blocking=True)
    torch.cuda.current_stream(values.device).synchronize()
    return copy


def unpack(entries: Sequence[frame_pb2.Tensor], payload: memoryview) -> dict[str, torch.Tensor]:
    """The tensors of a payload; RAW ones are writable views of it.

    Raises:
        ProtocolError: a description is malformed, does not fit the payload, or overlaps another,
            or the bytes are not those that were sent.
    """
    limits.check("number of tensors", len(entries), limits.MAX_TENSORS)
    sums = [entry.checksum for entry in entries]
    checked = [_within(_read(entry), payload.nbytes) for entry in entries]
    _check_disjoint(checked)
    tensors: dict[str, torch.Tensor] = {}
    for entry, expected in zip(checked, sums, strict=True):
        if entry.name in tensors:
            raise ProtocolError(f"tensor {entry.name!r} is there twice")
        tensors[entry.name] = _unpack_one(entry, payload, expected)
    return tensors


def _read(entry: frame_pb2.Tensor) -> _Entry:
    """As `_checked`, at once where the same was checked before; its checksum is dropped."""
    entry.checksum = 0
    description = entry.SerializeToString()
    if len(description) > _MAX_REMEMBERED_BYTES:
        return _checked(entry)
    return _remembered(description)


@lru_cache(_NUM_REMEMBERED)
def _remembered(description: bytes) -> _Entry:
    return _checked(frame_pb2.Tensor.FromString(description))


def _checked(entry: frame_pb2.Tensor) -> _Entry:
    """A description, and all checks that need no value, no memory and no payload."""
    name = limits.checked_name(entry.name)
    dtype, codec = dtype_of(entry.dtype), _CODECS.get(entry.codec)
    exponent, shape = entry.scale_exponent, tuple(entry.shape)
    offset, num_bytes = entry.offset, entry.num_bytes
    if dtype is None:
        raise ProtocolError(f"tensor {name!r} has unknown dtype number {entry.dtype}")
    if codec is None:
        raise ProtocolError(f"tensor {name!r} has unknown codec number {entry.codec}")
    if codec is not _RAW and codec_for(dtype, codec) is not codec:
        raise ProtocolError(f"tensor {name!r} has codec {codec.name}, which is not for {dtype}")
    if not is_valid_exponent(dtype, codec, exponent):
        raise ProtocolError(f"tensor {name!r} has scale exponent {exponent}")
    _check_rank(name, len(shape))
    order, numel = checked_order(entry.order, len(shape), name), math.prod(shape)
    # By position: names would double what it takes to make one.
    read = _Entry(name, dtype, codec, shape, order, numel, offset, num_bytes, exponent)
    _check_size(read)
    return read


def _within(entry: _Entry, payload_bytes: int) -> _Entry:
    if entry.offset % ALIGNMENT or entry.offset + entry.num_bytes > payload_bytes:
        raise ProtocolError(
            f"tensor {entry.name!r} lies at {entry.offset} with {entry.num_bytes} bytes; expected "
            f"a multiple of {ALIGNMENT}, and an end within the payload of {payload_bytes} bytes"
        )
    return entry


def _check_rank(name: str, rank: int) -> None:
    if rank > limits.MAX_RANK:
        limits.check(f"rank of tensor {name!r}", rank, limits.MAX_RANK)


def _check_size(entry: _Entry) -> None:
    # Strides are computed with empty dimensions counted as one, and have to fit 64 bits.
    largest = entry.numel or math.prod(max(1, size) for size in entry.shape)
    if largest * entry.dtype.itemsize >= 1 << 63:
        raise ProtocolError(f"tensor {entry.name!r} has impossible shape {list(entry.shape)}")
    least = most = entry.numel * entry.dtype.itemsize
    if entry.codec is not _RAW:
        least = least_wire_bytes(entry.dtype, entry.codec, entry.numel)
        most = wire_bytes(entry.dtype, entry.codec, entry.numel)
    if not least <= entry.num_bytes <= most:
        expected = f"{most}" if least == most else f"{least} to {most}"
        raise ProtocolError(
            f"tensor {entry.name!r} of shape {list(entry.shape)} has {entry.num_bytes} bytes, "
            f"expected {expected}"
        )


def _check_disjoint(entries: Sequence[_Entry]) -> None:
    if len(entries) < 2:
        return
    end, before = 0, ""
    for entry in sorted((e for e in entries if e.num_bytes), key=lambda e: e.offset):
        if entry.offset < end:
            raise ProtocolError(f"tensors {before!r} and {entry.name!r} overlap in the payload")
        end, before = entry.offset + entry.num_bytes, entry.name


def _unpack_one(entry: _Entry, payload: memoryview, expected: int) -> torch.Tensor:
    dtype, shape = entry.dtype, entry.shape
    raw = payload[entry.offset : entry.offset + entry.num_bytes]
    if (found := checksum(raw)) != expected:
        raise ProtocolError(
            f"tensor {entry.name!r} is damaged: checksum {found:08x}, expected {expected:08x}"
        )
    if not entry.num_bytes:
        return torch.empty(shape, dtype=dtype)
    if entry.codec is not _RAW:
        as_bytes = torch.frombuffer(raw, dtype=torch.uint8)
        values = restore(as_bytes, dtype, entry.codec, entry.scale_exponent, entry.numel)
    elif dtype is not torch.bool:
        values = torch.frombuffer(raw, dtype=dtype)
    else:
        values = _checked_bools(torch.frombuffer(raw, dtype=torch.uint8), entry.name)
    return laid_out(values, shape, entry.order)


def _checked_bools(as_bytes: torch.Tensor, name: str) -> torch.Tensor:
    if as_bytes.max() > 1:
        # Kernels count on 0 and 1; with other bytes they may write out of bounds.
        raise ProtocolError(f"tensor {name!r} of torch.bool has bytes other than 0 and 1")
    return as_bytes.view(torch.bool)
