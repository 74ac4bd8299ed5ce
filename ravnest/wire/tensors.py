"""Tensors to buffers and back, with where each lies in the payload."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

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
from ravnest.wire.orders import checked_order, laid_out, order_of
from ravnest.wire.pb import frame_pb2

ALIGNMENT = 64

_CODECS = frozenset(int(codec) for codec in Codec)


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
    if number is None or tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise ProtocolError(
            f"tensor {name!r} is {tensor.dtype}, {tensor.layout}, on {tensor.device}; "
            f"expected a strided tensor with values, of a dtype in ravnest.wire.dtypes"
        )
    limits.check(f"rank of tensor {name!r}", tensor.dim(), limits.MAX_RANK)
    used = codec_for(tensor.dtype, codec)
    # Detached first: what is sent takes part in no graph of this process.
    values, exponent = tensor.detach(), 0
    if order := order_of(values):
        values = values.permute(order)
    if used is not Codec.RAW:
        values, exponent = shrink(values, used)
    buffer = _bytes_of(values)
    entry = frame_pb2.Tensor(
        name=name,
        dtype=number,
        codec=used,
        shape=tensor.shape,
        num_bytes=buffer.nbytes,
        checksum=checksum(buffer),
        scale_exponent=exponent,
        order=order,
    )
    return entry, buffer


def _bytes_of(values: torch.Tensor) -> memoryview:
    if values.numel() == 0:
        return memoryview(b"")
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
    for entry in entries:
        _check_entry(entry, payload.nbytes)
    _check_disjoint(entries)
    tensors: dict[str, torch.Tensor] = {}
    for entry in entries:
        if entry.name in tensors:
            raise ProtocolError(f"tensor {entry.name!r} is there twice")
        tensors[entry.name] = _unpack_one(entry, payload)
    return tensors


def _check_entry(entry: frame_pb2.Tensor, payload_bytes: int) -> None:
    """Everything that can be known before a value is touched or allocated."""
    name = limits.checked_name(entry.name)
    dtype = dtype_of(entry.dtype)
    if dtype is None:
        raise ProtocolError(f"tensor {name!r} has unknown dtype number {entry.dtype}")
    if entry.codec not in _CODECS:
        raise ProtocolError(f"tensor {name!r} has unknown codec number {entry.codec}")
    codec = Codec(entry.codec)
    if codec_for(dtype, codec) is not codec:
        raise ProtocolError(f"tensor {name!r} has codec {codec.name}, which is not for {dtype}")
    if not is_valid_exponent(dtype, codec, entry.scale_exponent):
        raise ProtocolError(f"tensor {name!r} has scale exponent {entry.scale_exponent}")
    limits.check(f"rank of tensor {name!r}", len(entry.shape), limits.MAX_RANK)
    checked_order(entry.order, len(entry.shape), name)
    _check_size(entry, dtype, codec)
    if entry.offset % ALIGNMENT or entry.offset + entry.num_bytes > payload_bytes:
        raise ProtocolError(
            f"tensor {name!r} lies at {entry.offset} with {entry.num_bytes} bytes; expected a "
            f"multiple of {ALIGNMENT}, and an end within the payload of {payload_bytes} bytes"
        )


def _check_size(entry: frame_pb2.Tensor, dtype: torch.dtype, codec: Codec) -> None:
    # Strides are computed with empty dimensions counted as one, and have to fit 64 bits.
    if math.prod(max(1, size) for size in entry.shape) * dtype.itemsize >= 1 << 63:
        raise ProtocolError(f"tensor {entry.name!r} has impossible shape {list(entry.shape)}")
    numel = math.prod(entry.shape)
    least, most = (count(dtype, codec, numel) for count in (least_wire_bytes, wire_bytes))
    if not least <= entry.num_bytes <= most:
        expected = f"{most}" if least == most else f"{least} to {most}"
        raise ProtocolError(
            f"tensor {entry.name!r} of shape {list(entry.shape)} has {entry.num_bytes} bytes, "
            f"expected {expected}"
        )


def _check_disjoint(entries: Sequence[frame_pb2.Tensor]) -> None:
    end, before = 0, ""
    for entry in sorted((e for e in entries if e.num_bytes), key=lambda e: e.offset):
        if entry.offset < end:
            raise ProtocolError(f"tensors {before!r} and {entry.name!r} overlap in the payload")
        end, before = entry.offset + entry.num_bytes, entry.name


def _unpack_one(entry: frame_pb2.Tensor, payload: memoryview) -> torch.Tensor:
    dtype, codec = dtype_of(entry.dtype), Codec(entry.codec)
    assert dtype is not None, "checked before"
    shape, order = tuple(entry.shape), tuple(entry.order)
    raw = payload[entry.offset : entry.offset + entry.num_bytes]
    if (found := checksum(raw)) != entry.checksum:
        raise ProtocolError(
            f"tensor {entry.name!r} is damaged: checksum {found:08x}, expected {entry.checksum:08x}"
        )
    if not entry.num_bytes:
        return torch.empty(shape, dtype=dtype)
    as_bytes = torch.frombuffer(raw, dtype=torch.uint8)
    if dtype is torch.bool and as_bytes.max() > 1:
        # Kernels count on 0 and 1; with other bytes they may write out of bounds.
        raise ProtocolError(f"tensor {entry.name!r} of torch.bool has bytes other than 0 and 1")
    if codec is Codec.RAW:
        return laid_out(as_bytes.view(dtype), shape, order)
    numel = math.prod(shape)
    values = restore(as_bytes, dtype, codec, entry.scale_exponent, numel)
    return laid_out(values, shape, order)
