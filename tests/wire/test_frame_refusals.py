"""Hostile headers and payloads: ProtocolError and nothing else, before anything is allocated."""

from __future__ import annotations

import contextlib
import json
import math
import tracemalloc

import pytest
import torch
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from wire_strategies import FRAMES

from ravnest.errors import ProtocolError
from ravnest.wire.checksum import checksum
from ravnest.wire.codec import decode, encode
from ravnest.wire.dtypes import dtype_of
from ravnest.wire.frame import Codec, Frame, FrameKind
from ravnest.wire.layouts import least_wire_bytes, wire_bytes
from ravnest.wire.pb import frame_pb2
from ravnest.wire.tensors import _remembered

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

PAYLOAD = bytes(range(64))


def header(**changes: object) -> frame_pb2.FrameHeader:
    """A good header of one float32 tensor of 16 values, with changes to the tensor."""
    frame = Frame(
        FrameKind.ACTIVATION,
        tensors={"x": torch.frombuffer(bytearray(PAYLOAD), dtype=torch.float32)},
    )
    parsed = frame_pb2.FrameHeader.FromString(encode(frame)[0])
    for name, value in changes.items():
        if name in ("shape", "order"):
            repeated = getattr(parsed.tensors[0], name)
            del repeated[:]
            repeated.extend(value)
        else:
            setattr(parsed.tensors[0], name, value)
    return parsed


def refused(parsed: frame_pb2.FrameHeader, reason: str, payload: bytes = PAYLOAD) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode(parsed.SerializeToString(), bytearray(payload))


def test_the_good_header_is_good():
    assert decode(header().SerializeToString(), bytearray(PAYLOAD)).tensors["x"].shape == (16,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": 0}, "unknown dtype number 0"),
        ({"dtype": 99}, "unknown dtype number 99"),
        ({"codec": 0}, "unknown codec number 0"),
        ({"codec": max(Codec) + 1}, "unknown codec number"),
        ({"codec": 77}, "unknown codec number 77"),
        ({"dtype": 5, "codec": 2}, "codec FLOAT16, which is not for torch.int32"),
        ({"scale_exponent": 3}, "scale exponent 3"),
        ({"codec": 2, "shape": [32], "scale_exponent": 500}, "scale exponent 500"),
        ({"shape": [15]}, "has 64 bytes, expected 60"),
        ({"shape": [17]}, "has 64 bytes, expected 68"),
        ({"shape": [0]}, "has 64 bytes, expected 0"),
        ({"shape": [1 << 62, 4]}, "impossible shape"),
        ({"shape": [1 << 63]}, "impossible shape"),
        ({"shape": [0, 1 << 62, 1 << 62], "num_bytes": 0}, "impossible shape"),
        ({"order": [1]}, r"order \[1\], expected each of 1 once"),
        ({"shape": [4, 4], "order": [0, 0]}, "expected each of 2 once"),
        ({"shape": [4, 4], "order": [1]}, "expected each of 2 once"),
        ({"order": [0] * 1000}, "expected each of 1 once"),
        ({"shape": [1] * 33}, "rank of tensor 'x' is 33"),
        ({"num_bytes": 1 << 63}, "expected 64"),
        ({"offset": 64}, "within the payload of 64 bytes"),
        ({"offset": 1 << 63}, "within the payload"),
        ({"offset": 1}, "multiple of 64"),
        ({"checksum": 1}, "damaged"),
        ({"name": "n" * 513}, "has 513 bytes"),
    ],
)
def test_a_tensor_that_does_not_add_up_is_refused(changes, reason):
    refused(header(**changes), reason)


def test_damaged_values_are_refused():
    refused(header(), "damaged", PAYLOAD[:-1] + b"\x00")


def test_what_was_good_before_is_good_only_with_the_values_and_the_room_it_had():
    good = header()
    for _ in range(2):
        first, second = (
            decode(encode(Frame(FrameKind.ACTIVATION, tensors={"x": values}))[0], payload)
            for values, payload in (
                (torch.zeros(16), bytearray(64)),
                (torch.frombuffer(bytearray(PAYLOAD), dtype=torch.float32), bytearray(PAYLOAD)),
            )
        )
        assert torch.equal(first.tensors["x"], torch.zeros(16))
        assert second.tensors["x"].numpy().tobytes() == PAYLOAD
        refused(good, "damaged", bytes(64))
    short = header()
    short.payload_bytes = 32
    refused(short, "an end within the payload of 32 bytes", PAYLOAD[:32])


def test_no_more_than_a_little_of_a_description_is_remembered():
    # A field that nobody knows, which protobuf keeps.
    unknown = b"\xfa\x01" + b"\x80\x80\x04" + bytes(1 << 16)
    parsed = header()
    parsed.tensors[0].MergeFromString(unknown)
    assert len(parsed.tensors[0].SerializeToString()) > 1 << 16
    before = _remembered.cache_info().currsize
    assert decode(parsed.SerializeToString(), bytearray(PAYLOAD)).tensors["x"].shape == (16,)
    assert _remembered.cache_info().currsize == before


def test_overlapping_tensors_are_refused():
    parsed = header()
    other = parsed.tensors.add()
    other.CopyFrom(parsed.tensors[0])
    other.name = "y"
    refused(parsed, "'x' and 'y' overlap")


def test_a_name_that_is_there_twice_is_refused():
    parsed = header(shape=[0], num_bytes=0, checksum=0)
    parsed.tensors.add().CopyFrom(parsed.tensors[0])
    refused(parsed, "'x' is there twice")
    parsed = header()
    parsed.scalars.add(name="s")
    parsed.scalars.add(name="s")
    refused(parsed, "'s' is there twice")


def test_too_many_of_anything_are_refused():
    parsed = header()
    for i in range(4097):
        parsed.tensors.add(name=str(i))
    refused(parsed, "number of tensors is 4098")
    parsed = header()
    for i in range(4097):
        parsed.scalars.add(name=str(i))
    refused(parsed, "number of scalars is 4097")


@pytest.mark.parametrize("kind", [0, max(FrameKind) + 1, 4_000_000_000])
def test_an_unknown_kind_is_refused(kind):
    parsed = header()
    parsed.kind = kind
    refused(parsed, f"frame kind {kind} is unknown")


def test_a_payload_of_another_size_is_refused():
    refused(header(), "has 63 bytes, its header says 64", PAYLOAD[:-1])
    refused(header(), "has 65 bytes, its header says 64", PAYLOAD + b"x")


def test_counts_beyond_63_bits_are_refused():
    parsed = header()
    parsed.weight_version = 1 << 63
    refused(parsed, "weight version")
    parsed = header()
    parsed.microbatch.index = (1 << 64) - 1
    refused(parsed, "index of the microbatch")


@pytest.mark.parametrize("digits", ["", "-", "1e5", "٣", "0x10", " 1", "1" * 1025, "--1", "1_0"])
def test_a_big_integer_that_is_none_is_refused(digits):
    parsed = header()
    parsed.scalars.add(name="s", big_integer=digits)
    refused(parsed, "is no integer")


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (b"[]", "a JSON list, expected an object"),
        (b"1", "a JSON int, expected an object"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b'{"a":' + b"9" * 5000 + b"}", "no JSON"),
        (json.dumps({"a": "x" * (16 << 20)}).encode(), "size of the details"),
        (b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", "depth of the details"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "no JSON"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "no JSON"),
    ],
)
def test_details_that_are_malformed_or_large_or_deep_are_refused(details, reason):
    parsed = header()
    parsed.details = details
    refused(parsed, reason)


def test_a_huge_claim_allocates_nothing():
    parsed = header(codec=2, shape=[1 << 40], num_bytes=1 << 41)
    tracemalloc.start()
    try:
        refused(parsed, "within the payload")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=200))
@example(b"", b"")
def test_random_bytes_raise_nothing_but_protocol_error(raw, payload):
    with contextlib.suppress(ProtocolError):
        decode(raw, bytearray(payload))


@settings(max_examples=600, deadline=None)
@given(FRAMES, st.data())
def test_mutated_headers_raise_nothing_but_protocol_error(frame, data):
    raw, buffers = encode(frame)
    mutated = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        if not mutated:
            break
        place = data.draw(st.integers(0, len(mutated) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                mutated[place] = data.draw(st.integers(0, 255))
            case 1:
                del mutated[place]
            case _:
                mutated.insert(place, data.draw(st.integers(0, 255)))
    with contextlib.suppress(ProtocolError):
        decode(bytes(mutated), bytearray().join(buffers))


@st.composite
def plausible_tensors(draw: st.DrawFn) -> frame_pb2.Tensor:
    """A description that fits the payload now and then, with a right checksum."""
    offset = draw(st.sampled_from([0, 0, 64, 64, 128, 128, 1, 1 << 62]))
    number, codec = (
        draw(st.integers(0, 21)),
        draw(st.sampled_from([0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 7, 8])),
    )
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 4, 1 << 40, 1 << 63]), max_size=3))
    dtype = dtype_of(number) or torch.uint8
    known = Codec(codec) if codec in list(Codec) else Codec.RAW
    numel = math.prod(shape)
    fitting = wire_bytes(dtype, known, numel) % (1 << 63)
    least = least_wire_bytes(dtype, known, numel) % (1 << 63)
    num_bytes = draw(st.sampled_from([fitting] * 3 + [least] + [0, 1, 64, 1 << 63]))
    return frame_pb2.Tensor(
        name=draw(st.sampled_from("abc")),
        dtype=number,
        codec=codec,
        shape=shape,
        offset=offset,
        num_bytes=num_bytes,
        checksum=checksum(memoryview((PAYLOAD * 4)[offset : offset + num_bytes])),
        scale_exponent=draw(st.sampled_from([0] * 8 + [1, -126, 126, 1022, -1022, 1 << 30])),
        order=draw(st.just([]) | st.permutations(range(len(shape))) | st.just([0, 0, 9])),
    )


@settings(max_examples=600, deadline=None)
@given(st.lists(plausible_tensors(), min_size=1, max_size=2))
def test_plausible_descriptions_decode_or_raise_protocol_error(entries):
    parsed = frame_pb2.FrameHeader(kind=1, tensors=entries, payload_bytes=256)
    try:
        frame = decode(parsed.SerializeToString(), bytearray(PAYLOAD * 4))
    except ProtocolError:
        event("refused")
    else:
        event("decoded")
        assert [list(t.shape) for t in frame.tensors.values()] == [list(e.shape) for e in entries]


def test_a_bool_that_is_neither_true_nor_false_is_refused():
    refused(header(dtype=1, shape=[64]), "bytes other than 0 and 1")
