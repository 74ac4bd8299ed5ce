"""Whatever goes into a frame comes out of it, bit by bit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_strategies import FRAMES, same_bits

from ravnest.errors import ProtocolError
from ravnest.wire.codec import decode, encode
from ravnest.wire.dtypes import DTYPES
from ravnest.wire.frame import Codec, Frame, FrameKind
from ravnest.wire.layouts import block_format, codec_for

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def over_the_wire(frame: Frame, codec: Codec = Codec.RAW) -> Frame:
    header, buffers = encode(frame, codec)
    return decode(header, bytearray().join(buffers))


def tensor_over_the_wire(tensor: torch.Tensor, codec: Codec = Codec.RAW) -> torch.Tensor:
    frame = Frame(FrameKind.ACTIVATION, tensors={"x": tensor})
    return over_the_wire(frame, codec).tensors["x"]


def same_scalar(left: object, right: object) -> bool:
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    return type(left) is type(right) and left == right


@settings(max_examples=300, deadline=None)
@given(FRAMES)
def test_any_frame_comes_back(frame):
    back = over_the_wire(frame)
    assert (back.kind, back.microbatch) == (frame.kind, frame.microbatch)
    assert (back.attempt, back.weight_version) == (frame.attempt, frame.weight_version)
    assert list(back.tensors) == list(frame.tensors)
    assert all(same_bits(back.tensors[name], frame.tensors[name]) for name in frame.tensors)
    assert list(back.scalars) == list(frame.scalars)
    assert all(same_scalar(back.scalars[name], frame.scalars[name]) for name in frame.scalars)
    assert back.details == frame.details


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (7,), (2, 3, 5), (1,) * 32])
def test_every_dtype_and_rank_with_every_codec(dtype, shape, codec):
    numel = torch.Size(shape).numel()
    tensor = (torch.arange(numel, dtype=torch.float32) % 8).to(dtype).view(shape)
    back = tensor_over_the_wire(tensor, codec)
    if (layout := block_format(codec)) is not None and codec_for(dtype, codec) is codec:
        # A rotated block's largest magnitude is its norm at most.
        largest = 7 * (math.sqrt(tensor.numel()) if layout.is_rotated else 1)
        atol = largest / (2 * layout.top) + 7 * torch.finfo(dtype).eps
        torch.testing.assert_close(back, tensor, rtol=0, atol=atol)
    else:
        assert same_bits(back, tensor)


def test_a_contiguous_tensor_is_not_copied_on_the_way_out():
    tensor = torch.arange(1000.0)
    _, (buffer,) = encode(Frame(FrameKind.ACTIVATION, tensors={"x": tensor}))
    tensor[0] = 5.0
    assert torch.frombuffer(bytearray(buffer), dtype=torch.float32)[0] == 5.0


@given(st.permutations(range(4)), st.lists(st.sampled_from([1, 2, 3]), min_size=4, max_size=4))
@pytest.mark.parametrize("codec", [Codec.RAW, Codec.BFLOAT16, Codec.INT8])
def test_dimensions_lie_in_memory_as_they_did(codec, order, sizes):
    """Where a size of 1 leaves the strides open, kernels may still read them."""
    places = sorted(range(4), key=order.__getitem__)
    tensor = torch.ones([sizes[each] for each in order]).permute(places)
    back = tensor_over_the_wire(tensor, codec)
    assert back.shape == tensor.shape
    torch.testing.assert_close(back, tensor, rtol=0.01, atol=0)
    if 1 not in sizes:
        assert back.stride() == tensor.stride()


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1)])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_memory_formats_are_kept(shape, memory_format):
    tensor = torch.randn(shape).contiguous(memory_format=memory_format)
    assert tensor_over_the_wire(tensor).stride() == tensor.stride()


def test_a_tensor_of_channels_last_is_not_copied_and_one_with_gaps_is():
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    _, (buffer,) = encode(Frame(FrameKind.ACTIVATION, tensors={"x": tensor}))
    assert torch.frombuffer(buffer, dtype=torch.uint8).data_ptr() == tensor.data_ptr()
    gapped = tensor[:, :2]
    back = tensor_over_the_wire(gapped)
    assert torch.equal(back, gapped)
    assert back.is_contiguous()


def test_a_decoded_tensor_is_a_writable_view_of_the_payload():
    header, buffers = encode(Frame(FrameKind.ACTIVATION, tensors={"x": torch.arange(10.0)}))
    payload = bytearray().join(buffers)
    tensor = decode(header, payload).tensors["x"]
    tensor[0] = 5.0
    assert torch.frombuffer(payload, dtype=torch.float32)[0] == 5.0


def test_a_read_only_payload_is_copied_and_the_tensor_still_writable():
    header, buffers = encode(Frame(FrameKind.ACTIVATION, tensors={"x": torch.arange(10.0)}))
    tensor = decode(header, memoryview(b"".join(buffers))).tensors["x"]
    tensor += 1.0
    assert torch.equal(tensor, torch.arange(10.0) + 1.0)


def test_every_tensor_is_aligned_to_64_bytes():
    tensors = {str(i): torch.zeros(i, dtype=torch.uint8) for i in (1, 63, 64, 0, 65, 3)}
    header, buffers = encode(Frame(FrameKind.ACTIVATION, tensors=tensors))
    payload = bytearray().join(buffers)
    base = torch.frombuffer(payload, dtype=torch.uint8).data_ptr()
    for name, tensor in decode(header, payload).tensors.items():
        assert int(name) == 0 or (tensor.data_ptr() - base) % 64 == 0


def test_a_tensor_in_a_graph_is_detached():
    weight = torch.ones(3, requires_grad=True)
    back = tensor_over_the_wire(weight * 2)
    assert not back.requires_grad
    assert torch.equal(back, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(24.0).view(4, 6).t(),
        torch.arange(24.0).view(4, 6)[:, ::2],
        torch.arange(3.0).expand(5, 3),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.arange(10.0)[3:],
    ],
)
def test_views_arrive_as_their_values(view):
    assert torch.equal(tensor_over_the_wire(view), view)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.zeros((1,) * 33),
    ],
)
def test_what_cannot_travel_is_refused_with_its_name(tensor):
    with pytest.raises(ProtocolError, match="'x'"):
        encode(Frame(FrameKind.ACTIVATION, tensors={"x": tensor}))


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameKind.RUN, attempt=-1),
        Frame(FrameKind.RUN, weight_version=1 << 63),
        Frame(FrameKind.RUN, tensors={"n" * 513: torch.ones(1)}),
        Frame(FrameKind.RUN, tensors={str(i): torch.ones(0) for i in range(4097)}),
        Frame(FrameKind.RUN, scalars={"n" * 513: 1}),
        Frame(FrameKind.RUN, scalars={"big": 10**2000}),
        Frame(FrameKind.RUN, scalars={"bytes": b"no scalar"}),
        Frame(FrameKind.RUN, details={"object": object()}),
        Frame(FrameKind.RUN, details={"long": "x" * (16 << 20)}),
    ],
)
def test_what_no_peer_would_take_fails_at_its_sender(frame):
    with pytest.raises(ProtocolError):
        encode(frame)


def test_many_small_and_big_frames_share_nothing():
    first, second = torch.ones(3), torch.zeros(3)
    header_a, buffers_a = encode(Frame(FrameKind.GRADIENT, tensors={"x": first}))
    header_b, buffers_b = encode(Frame(FrameKind.GRADIENT, tensors={"x": second}))
    a = decode(header_a, bytearray().join(buffers_a)).tensors["x"]
    b = decode(header_b, bytearray().join(buffers_b)).tensors["x"]
    a += 1
    assert torch.equal(b, torch.zeros(3))
    assert torch.equal(first, torch.ones(3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("codec", Codec)
def test_a_tensor_on_an_accelerator_arrives_on_the_cpu(codec):
    tensor = torch.arange(8.0, device="cuda")
    expected = tensor_over_the_wire(tensor.cpu(), codec)
    torch.testing.assert_close(tensor_over_the_wire(tensor, codec), expected, rtol=1e-5, atol=0)
