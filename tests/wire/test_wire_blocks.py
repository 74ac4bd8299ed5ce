"""The blockwise codecs: how far off a block may be, and what becomes of extremes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import tensors

from ravnest.wire.blocks import BLOCK_FORMATS, dequantise, quantise
from ravnest.wire.codec import decode, encode
from ravnest.wire.frame import Codec, Frame, FrameKind
from ravnest.wire.orders import order_of

INF, NAN = math.inf, math.nan
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BLOCKWISE = tuple(BLOCK_FORMATS)
TOP = torch.finfo(torch.float32).max
TINY = torch.finfo(torch.float32).tiny


def over_the_wire(tensor: torch.Tensor, codec: Codec) -> torch.Tensor:
    header, buffers = encode(Frame(FrameKind.ACTIVATION, tensors={"x": tensor}), codec)
    return decode(header, bytearray().join(buffers)).tensors["x"]


def blocks_of(tensor: torch.Tensor, codec: Codec) -> tuple[torch.Tensor, ...]:
    """As the values lie in memory."""
    in_order = tensor.permute(order_of(tensor) or tuple(range(tensor.dim())))
    return in_order.reshape(-1).double().split(BLOCK_FORMATS[codec].size)


def check_block(before: torch.Tensor, after: torch.Tensor, codec: Codec, eps: float) -> None:
    """A block of float64 values against the documented bound.

    Args:
        eps: of the dtype that it came back in.
    """
    layout = BLOCK_FORMATS[codec]
    largest = before.abs().max()
    if not bool((before.abs() <= TOP).all()):
        assert bool(after.isnan().all()), "a fault shows, in its whole block"
        return
    assert bool(after.isfinite().all())
    if largest < TINY:
        assert bool(after.eq(0.0).all())
        return
    # Below a normal scale everything is zero; else half a step, and what float32 and dtype round.
    vanishing = 8.1 * layout.top * TINY
    error = (before - after).abs()
    if layout.is_rotated:
        error = error.square().mean().sqrt()
        largest = before.norm()
    half_step = largest / (2 * layout.top)
    bound = half_step * (1 + 1e-4) + largest * (eps + 1e-6) + vanishing
    assert bool((error <= bound).all()), (before, after)


@pytest.mark.parametrize("codec", BLOCKWISE)
@settings(max_examples=150, deadline=None)
@given(tensors(FLOATS))
def test_any_bits_are_within_the_bound_of_their_block(codec, tensor):
    back = over_the_wire(tensor, codec)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    eps = torch.finfo(tensor.dtype).eps
    for before, after in zip(blocks_of(tensor, codec), blocks_of(back, codec), strict=True):
        if before.numel():
            check_block(before, after, codec, eps)


@pytest.mark.parametrize("codec", BLOCKWISE)
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(FLOATS),
    st.integers(0, 700),
    st.integers(0, 2**31),
    st.floats(-7, 7),
    st.booleans(),
)
def test_blocks_of_many_values_are_within_their_bound(codec, dtype, count, seed, spread, strided):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(2 * count, generator=generator, dtype=torch.float64)
    values *= torch.logspace(-spread / 2, spread / 2, 2 * count, dtype=torch.float64)
    tensor = values.to(dtype)[:: 2 if strided else 1]
    back = over_the_wire(tensor, codec)
    eps = torch.finfo(dtype).eps
    for before, after in zip(blocks_of(tensor, codec), blocks_of(back, codec), strict=True):
        if before.numel():
            check_block(before, after, codec, eps)


@pytest.mark.parametrize("codec", BLOCKWISE)
@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_constants_denormals_and_the_largest_numbers(codec, dtype):
    info = torch.finfo(dtype)
    size = 3 * BLOCK_FORMATS[codec].size
    assert over_the_wire(torch.zeros(size, dtype=dtype), codec).eq(0).all()
    largest = min(info.max, TOP)
    for value in (-2.5, 1.0, 3e-30 if dtype is not torch.float16 else 1e-4, largest, -largest):
        constant = torch.full((size,), value, dtype=dtype)
        back = over_the_wire(constant, codec)
        torch.testing.assert_close(back, constant, rtol=max(info.eps, 2e-6), atol=0)
        assert bool(back.isfinite().all())
    denormal = torch.full((size,), 1e-44, dtype=dtype)
    assert over_the_wire(denormal, codec).eq(0).all()


@pytest.mark.parametrize("codec", BLOCKWISE)
def test_a_fault_shows_in_its_whole_block_and_in_no_other(codec):
    size = BLOCK_FORMATS[codec].size
    for bad in (NAN, INF, -INF):
        mixed = torch.ones(2 * size)
        mixed[3] = bad
        back = over_the_wire(mixed, codec)
        assert bool(back[:size].isnan().all())
        torch.testing.assert_close(back[size:], mixed[size:], rtol=1e-6, atol=0)
    beyond = torch.full((size,), 1e300, dtype=torch.float64)
    assert bool(over_the_wire(beyond, codec).isnan().all())


def test_rotation_keeps_what_an_outlier_takes_from_its_neighbours():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(64 * 100, generator=generator)
    values[::64] *= 30
    errors = {
        codec: (over_the_wire(values, codec) - values).norm() / values.norm()
        for codec in (Codec.INT4, Codec.INT4_HADAMARD)
    }
    assert errors[Codec.INT4_HADAMARD] < 0.75 * errors[Codec.INT4]


def test_a_rotated_block_keeps_a_single_value_exactly():
    lone = torch.zeros(64)
    lone[17] = -3.0
    torch.testing.assert_close(over_the_wire(lone, Codec.INT4_HADAMARD), lone, rtol=1e-6, atol=0)


def test_what_comes_back_does_not_depend_on_how_the_sums_are_made():
    values = torch.randn(64 * 5, generator=torch.Generator().manual_seed(1))
    layout = BLOCK_FORMATS[Codec.INT4_HADAMARD]
    wire = quantise(values, layout)
    together = dequantise(wire, torch.float32, layout, values.numel())
    for number in range(5):
        scale = wire[4 * number : 4 * (number + 1)]
        steps = wire[20 + 32 * number : 20 + 32 * (number + 1)]
        alone = dequantise(torch.cat([scale, steps]), torch.float32, layout, 64)
        assert torch.equal(alone, together[64 * number : 64 * (number + 1)])


@pytest.mark.parametrize(
    ("codec", "num_bytes"),
    [(Codec.INT8, 2560 + 40), (Codec.INT4, 1280 + 160), (Codec.INT4_HADAMARD, 1280 + 160)],
)
def test_so_many_bytes_travel(codec, num_bytes):
    for dtype in FLOATS:
        frame = Frame(FrameKind.ACTIVATION, tensors={"x": torch.randn(2560).to(dtype)})
        assert sum(buffer.nbytes for buffer in encode(frame, codec)[1]) == num_bytes
