"""Steps as Huffman codes: the values of INT8 in fewer bytes, and strangers' codes are bounded."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import tensors

from ravnest.errors import ProtocolError
from ravnest.wire.checksum import checksum
from ravnest.wire.codec import decode, encode
from ravnest.wire.entropy import least_bytes, lengthen, shorten
from ravnest.wire.frame import Codec, Frame, FrameKind
from ravnest.wire.pb import frame_pb2

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def coded(tensor: torch.Tensor, codec: Codec) -> tuple[bytes, bytearray]:
    header, buffers = encode(Frame(FrameKind.RING_CHUNK, tensors={"x": tensor}), codec)
    return header, bytearray().join(buffers)


@settings(max_examples=150, deadline=None)
@given(tensors(FLOATS))
def test_values_are_those_of_int8_in_no_more_bytes(tensor: torch.Tensor) -> None:
    plain, short = coded(tensor, Codec.INT8), coded(tensor, Codec.INT8_HUFFMAN)
    expected, found = decode(*plain).tensors["x"], decode(*short).tensors["x"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert len(short[1]) <= len(plain[1])


def test_noise_takes_less_than_a_byte_per_value_with_its_scales() -> None:
    values = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    assert len(coded(values, Codec.INT8_HUFFMAN)[1]) < 0.96 * len(values)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=3000) | st.integers(0, 200_000).map(bytes))
def test_any_bytes_come_back_and_none_in_fewer_than_a_bit(values: bytes) -> None:
    short = memoryview(shorten(memoryview(values)))
    assert bytes(lengthen(short, len(values))) == values
    assert least_bytes(len(values)) <= short.nbytes <= len(values)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 1600))
def test_a_strangers_codes_give_what_is_expected_or_are_refused(
    codes: bytes, num_bytes: int
) -> None:
    with contextlib.suppress(ProtocolError):
        assert len(lengthen(memoryview(codes), num_bytes)) == num_bytes


def test_codes_of_more_or_fewer_values_than_stated_are_refused() -> None:
    short = memoryview(shorten(memoryview(bytes(1000))))
    for wrong in (999, 1001):
        with pytest.raises(ProtocolError, match=f"expected {wrong}"):
            lengthen(short, wrong)
    with pytest.raises(ProtocolError, match="end of the codes"):
        lengthen(memoryview(bytes(short) + b"x"), 1000)


def test_a_shape_that_so_few_bytes_cannot_hold_is_refused_before_it_is_made() -> None:
    header, payload = coded(torch.zeros(256), Codec.INT8_HUFFMAN)
    parsed = frame_pb2.FrameHeader.FromString(header)
    parsed.tensors[0].shape[0] = 1 << 40
    with pytest.raises(ProtocolError, match=r"expected \d+ to \d+"):
        decode(parsed.SerializeToString(), payload)


def test_codes_that_are_none_are_refused_with_the_tensors_frame() -> None:
    header, payload = coded(torch.randn(20_000), Codec.INT8_HUFFMAN)
    payload[316:] = b"\xff" * (len(payload) - 316)  # after 79 scales
    parsed = frame_pb2.FrameHeader.FromString(header)
    parsed.tensors[0].checksum = checksum(memoryview(payload))
    with pytest.raises(ProtocolError, match="Huffman"):
        decode(parsed.SerializeToString(), payload)
