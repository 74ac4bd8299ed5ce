"""The shadow: flat copies of a ring's tensors that a round works on. Knows no peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ravnest.errors import AveragingError

ACCUMULATORS = (torch.float32, torch.float64, torch.int64)
"""What tensors are averaged in, in the order their flat buffers travel."""

_WIDE = (torch.float64, torch.complex128)
_COUNTERS = (
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A live tensor and its place in the shadow.

    Attributes:
        name: original name; of a companion `<name> [<companion>]`.
        live: the tensor that is averaged.
        accumulator: dtype of the flat buffer it is copied into.
        start: its first element there.
        stop: the element after its last one; a complex value takes two.
    """

    name: str
    live: torch.Tensor
    accumulator: torch.dtype
    start: int
    stop: int


def accumulator_of(name: str, tensor: torch.Tensor) -> torch.dtype:
    """The dtype a tensor is averaged in.

    Floating and complex tensors add up in float32, or float64 when they are that wide; integers and
    bools are compared in int64.

    Raises:
        AveragingError: no mean and no maximum is defined for it.
    """
    if tensor.layout == torch.strided and tensor.device.type != "meta":
        if tensor.dtype in _WIDE:
            return torch.float64
        if tensor.dtype in _COUNTERS:
            return torch.int64
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return torch.float32
    raise AveragingError(
        f"{name!r} is a {describe(tensor)} tensor with layout {tensor.layout} on {tensor.device};"
        " expected a dense floating, complex, bool or integer (not uint64) tensor with data",
        hint="leave it out of the averaged tensors, or register it with persistent=False",
    )


def describe(tensor: torch.Tensor) -> str:
    """Dtype and shape in words: `float32 (4, 3)`."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def segments_of(
    names: Sequence[str],
    tensors: Mapping[str, torch.Tensor],
    companions: Mapping[str, Mapping[str, torch.Tensor]],
) -> tuple[Segment, ...]:
    """Lays tensors and their companions out in flat buffers, in the order of the names.

    Raises:
        AveragingError: a tensor is missing or of a kind that cannot be averaged.
    """
    ends = dict.fromkeys(ACCUMULATORS, 0)
    segments: list[Segment] = []
    for name in names:
        if name not in tensors:
            raise AveragingError(f"tensor {name!r} belongs to the ring, but was not given")
        followers = companions.get(name, {})
        for label, live in (
            (name, tensors[name]),
            *((f"{name} [{key}]", followers[key]) for key in sorted(followers)),
        ):
            accumulator = accumulator_of(label, live)
            start = ends[accumulator]
            if live.is_complex():
                start += start % 2  # pairs are viewed as complex numbers, which must be aligned
            stop = start + live.numel() * (2 if live.is_complex() else 1)
            ends[accumulator] = stop
            segments.append(Segment(label, live, accumulator, start, stop))
    return tuple(segments)


class Shadow:
    """Flat buffers in host memory, one per accumulator dtype, kept from round to round.

    Attributes:
        buffers: 1-D, in the order of `ACCUMULATORS`; those without elements are empty.
    """

    def __init__(self) -> None:
        self.buffers: tuple[torch.Tensor, ...] = ()

    def load(self, segments: Sequence[Segment]) -> None:
        """Copies the live tensors in; buffers of the right size are reused."""
        lengths = tuple(
            max((s.stop for s in segments if s.accumulator is dtype), default=0)
            for dtype in ACCUMULATORS
        )
        if tuple(buffer.numel() for buffer in self.buffers) != lengths:
            self.buffers = ()  # the old ones go before the new ones come
            self.buffers = tuple(
                torch.zeros(length, dtype=dtype)
                for length, dtype in zip(lengths, ACCUMULATORS, strict=True)
            )
        with torch.no_grad():
            for segment in segments:
                self._view(segment).copy_(segment.live)

    def apply(self, segments: Sequence[Segment]) -> None:
        """Copies the shadow into the live tensors, in place."""
        with torch.no_grad():
            for segment in segments:
                live, value = segment.live, self._view(segment)
                for dim, stride in enumerate(live.stride()):
                    if stride == 0 and live.shape[dim] > 1:  # expanded: one element, many places
                        live, value = live.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
                live.copy_(value)

    def _view(self, segment: Segment) -> torch.Tensor:
        buffer = self.buffers[ACCUMULATORS.index(segment.accumulator)]
        flat = buffer[segment.start : segment.stop]
        if segment.live.is_complex():
            flat = torch.view_as_complex(flat.view(-1, 2))
        return flat.view(segment.live.shape)
