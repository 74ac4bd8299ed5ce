"""The casts: how far off, and what becomes of extremes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import FLOATS, same_bits, tensors

from ravnest.wire.codec import decode, encode
from ravnest.wire.frame import Codec, Frame, FrameKind

INF, NAN = math.inf, math.nan
CASTS = (Codec.RAW, Codec.FLOAT16, Codec.BFLOAT16)


def over_the_wire(tensor: torch.Tensor, codec: Codec) -> torch.Tensor:
    header, buffers = encode(Frame(FrameKind.GRADIENT, tensors={"x": tensor}), codec)
    return decode(header, bytearray().join(buffers)).tensors["x"]


@settings(max_examples=300, deadline=None)
@given(tensors(FLOATS))
def test_float16_is_within_its_bound_for_any_bits(tensor):
    back = over_the_wire(tensor, Codec.FLOAT16)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back.isnan(), tensor.isnan())
    assert torch.equal(back == INF, tensor == INF)
    assert torch.equal(back == -INF, tensor == -INF)
    finite = tensor[tensor.isfinite()].double()
    if not finite.numel():
        return
    error = (back[tensor.isfinite()].double() - finite).abs()
    largest = finite.abs().max()
    # Relative 2^-11, or half of float16's smallest step where the largest is about 2^15.
    tiny = torch.finfo(tensor.dtype).smallest_normal
    bound = torch.maximum(finite.abs() * 2**-10.99, largest * 2**-39 + tiny * 2**-20)
    assert bool((error <= bound).all()), (tensor, back)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("exponent", [-100, -20, 0, 20, 100])
def test_float16_keeps_eleven_bits_at_any_magnitude(dtype, exponent):
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(1000, dtype=dtype, generator=generator) * 2.0**exponent
    back = over_the_wire(tensor, Codec.FLOAT16)
    torch.testing.assert_close(back, tensor, rtol=2**-11, atol=2.0 ** (exponent - 24))


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_largest_and_smallest_numbers_stay_finite_and_not_zero(dtype):
    info = torch.finfo(dtype)
    top = torch.tensor([info.max, -info.max, INF, -INF, NAN, 0.0], dtype=dtype)
    back = over_the_wire(top, Codec.FLOAT16)
    assert back[:2].isfinite().all()
    torch.testing.assert_close(back[:2], top[:2], rtol=2**-10, atol=0.0)
    assert torch.equal(back[2:4], top[2:4])
    assert bool(back[4].isnan())
    assert back[5] == 0.0
    bottom = torch.tensor([info.smallest_normal, -info.smallest_normal], dtype=dtype)
    assert torch.equal(over_the_wire(bottom, Codec.FLOAT16), bottom)


@pytest.mark.parametrize(
    "values", [[0.0, -0.0], [INF], [-INF, 1.0], [NAN, NAN], [NAN, INF, 0.0], []]
)
def test_zeros_infinities_and_nan_are_kept(values):
    tensor = torch.tensor(values)
    for codec in (Codec.FLOAT16, Codec.BFLOAT16):
        back = over_the_wire(tensor, codec)
        torch.testing.assert_close(back, tensor, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(back.signbit() & ~back.isnan(), tensor.signbit() & ~tensor.isnan())


@pytest.mark.parametrize("dtype", FLOATS)
def test_bfloat16_is_torchs_own_cast(dtype):
    tensor = torch.randn(1000, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert torch.equal(over_the_wire(tensor, Codec.BFLOAT16), tensor.bfloat16().to(dtype))


@settings(max_examples=50, deadline=None)
@given(
    tensors((torch.int32, torch.bool, torch.complex64, torch.float8_e5m2)),
    tensors((torch.bfloat16, torch.float16)),
    st.sampled_from(Codec),
    st.sampled_from(CASTS),
)
def test_what_is_not_for_a_codec_travels_raw(other, half, codec, cast):
    assert same_bits(over_the_wire(other, codec), other)
    assert same_bits(over_the_wire(half, cast), half)


def test_half_of_the_bytes_travel():
    tensor = torch.randn(1000)
    for codec in (Codec.FLOAT16, Codec.BFLOAT16):
        _, buffers = encode(Frame(FrameKind.GRADIENT, tensors={"x": tensor}), codec)
        assert sum(buffer.nbytes for buffer in buffers) == 2000
