"""Tensors and frames of every kind for the tests of this folder."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from ravnest.plan.identity import MicrobatchId
from ravnest.wire.dtypes import DTYPES
from ravnest.wire.frame import Frame, FrameKind

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
FLOATS = (torch.float32, torch.float64)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous().view(-1).view(torch.uint8)

    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and bool(left.numel() == 0 or torch.equal(raw(left), raw(right)))
    )


@st.composite
def tensors(draw: st.DrawFn, dtypes: tuple[torch.dtype, ...] = DTYPES) -> torch.Tensor:
    """Any bit pattern of any dtype; contiguous or not."""
    dtype, shape = draw(st.sampled_from(dtypes)), draw(SHAPES)
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.tensor(list(draw(st.binary(min_size=num_bytes, max_size=num_bytes))))
    if dtype is torch.bool:
        raw %= 2
    values = raw.to(torch.uint8).view(dtype).view(shape)
    if draw(st.booleans()) and values.dim() > 1:
        values = values.transpose(0, -1)
    return values


NAMES = st.text(max_size=60)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.floats() | st.text(max_size=20)
)
DETAILS = st.dictionaries(
    NAMES,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=3,
)
COUNTS = st.integers(0, (1 << 63) - 1)

FRAMES = st.builds(
    Frame,
    kind=st.sampled_from(FrameKind),
    microbatch=st.none() | st.builds(MicrobatchId, COUNTS, COUNTS),
    attempt=COUNTS,
    weight_version=COUNTS,
    tensors=st.dictionaries(NAMES, tensors(), max_size=4),
    scalars=st.dictionaries(NAMES, SCALARS, max_size=4),
    details=DETAILS,
)
