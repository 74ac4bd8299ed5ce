"""Frames to bytes and back: a protobuf header, and the tensors' values as raw buffers beside it.

Knows nothing of the network: what it makes and takes is a header and buffers.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from ravnest.errors import ProtocolError
from ravnest.plan.identity import MicrobatchId
from ravnest.wire import limits
from ravnest.wire.frame import Codec, Frame, FrameKind
from ravnest.wire.pb import frame_pb2
from ravnest.wire.plain import pack_details, pack_scalars, unpack_details, unpack_scalars
from ravnest.wire.tensors import pack, unpack

_KINDS = {int(kind): kind for kind in FrameKind}


def encode(frame: Frame, codec: Codec = Codec.RAW) -> tuple[bytes, list[memoryview]]:
    """A frame as a header and the buffers of its payload, in order.

    A CPU tensor without gaps is not copied with the RAW codec: its buffer is its own storage, which
    must not change until the buffers are sent. Gradients are detached, CUDA tensors copied to the
    CPU. Every tensor begins at a multiple of 64 bytes of the joined payload.

    Args:
        codec: for float32 and float64 tensors; all others travel raw.

    Raises:
        ProtocolError: the frame is larger than `ravnest.wire.limits` allows, or holds
            something that cannot travel.
    """
    limits.check("number of tensors", len(frame.tensors), limits.MAX_TENSORS)
    for name in frame.tensors:
        limits.checked_name(name)
    _check_counts(frame)
    entries, buffers, payload_bytes = pack(frame.tensors, codec)
    header = frame_pb2.FrameHeader(
        kind=int(frame.kind),
        attempt=frame.attempt,
        weight_version=frame.weight_version,
        tensors=entries,
        payload_bytes=payload_bytes,
    )
    if frame.scalars:
        header.scalars.extend(pack_scalars(frame.scalars))
    if frame.details:
        header.details = pack_details(frame.details)
    if frame.microbatch is not None:
        header.microbatch.epoch = frame.microbatch.epoch
        header.microbatch.index = frame.microbatch.index
    return header.SerializeToString(), buffers


def decode(header: bytes, payload: bytearray | memoryview) -> Frame:
    """The frame of a header and its payload; nothing in them is trusted.

    RAW tensors are writable views of the payload; those of other codecs are new tensors of their
    original dtype.

    Args:
        payload: all buffers joined; a read-only one is copied.

    Raises:
        ProtocolError: anything is unknown, malformed, too large, contradictory or damaged.
    """
    try:
        parsed = frame_pb2.FrameHeader.FromString(header)
    except DecodeError as error:
        raise ProtocolError(f"{len(header)} bytes are no frame header: {error}") from error
    if (kind := _KINDS.get(parsed.kind)) is None:
        raise ProtocolError(f"frame kind {parsed.kind} is unknown, expected one of {tuple(_KINDS)}")
    view = _writable_bytes(payload)
    if parsed.payload_bytes != view.nbytes:
        raise ProtocolError(
            f"the payload has {view.nbytes} bytes, its header says {parsed.payload_bytes}"
        )
    frame = Frame(
        kind=kind,
        microbatch=_microbatch_of(parsed),
        attempt=parsed.attempt,
        weight_version=parsed.weight_version,
        tensors=unpack(parsed.tensors, view),
        scalars=unpack_scalars(parsed.scalars),
        details=unpack_details(parsed.details),
    )
    _check_counts(frame)
    return frame


def _check_counts(frame: Frame) -> None:
    limits.check("attempt", frame.attempt, limits.MAX_COUNT)
    limits.check("weight version", frame.weight_version, limits.MAX_COUNT)
    if frame.microbatch is not None:
        limits.check("epoch", frame.microbatch.epoch, limits.MAX_COUNT)
        limits.check("index of the microbatch", frame.microbatch.index, limits.MAX_COUNT)


def _microbatch_of(parsed: frame_pb2.FrameHeader) -> MicrobatchId | None:
    if not parsed.HasField("microbatch"):
        return None
    return MicrobatchId(parsed.microbatch.epoch, parsed.microbatch.index)


def _writable_bytes(payload: bytearray | memoryview) -> memoryview:
    view = memoryview(payload)
    if view.readonly:
        view = memoryview(bytearray(view))
    return view.cast("B") if view.nbytes else memoryview(bytearray())
