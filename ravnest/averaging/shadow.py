"""The shadow: flat copies of a ring's tensors that a round works on. Knows no peer."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ravnest.errors import AveragingError

ACCUMULATORS = (torch.float32, torch.float64, torch.int64)
"""What tensors are averaged in, in the order their flat buffers travel."""

CHANGES = (torch.float32, torch.float64)
"""What pseudo-gradients are averaged in; their flat buffers travel after those of tensors."""

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


CHANGE = len(ACCUMULATORS)
"""Position of the flat buffer of pseudo-gradients in float32."""

_NO_ANCHORS: Mapping[str, torch.Tensor] = {}


@dataclass(frozen=True, slots=True)
class Segment:
    """A live tensor and its place in the shadow.

    Attributes:
        name: original name; of a companion `<name> [<companion>]`.
        live: the tensor that is averaged.
        parameter: name of the tensor, of a companion of the tensor that it follows.
        companion: name of the companion, None for the tensor itself.
        accumulator: dtype of the flat buffer it is copied into.
        start: its first element there.
        stop: the element after its last one; a complex value takes two.
        anchor: what all members had after the last round, in the dtype of averaging: then the
            shadow takes how far the live tensor is from it. None: the shadow takes the tensor.
    """

    name: str
    live: torch.Tensor
    parameter: str
    companion: str | None
    accumulator: torch.dtype
    start: int
    stop: int
    anchor: torch.Tensor | None = None

    @property
    def buffer(self) -> int:
        """Position of its flat buffer in the shadow."""
        return buffer_of(self.accumulator, is_change=self.anchor is not None)


def buffer_of(accumulator: torch.dtype, *, is_change: bool) -> int:
    """Position of the flat buffer that tensors, or changes of tensors, are averaged in."""
    if is_change:
        return len(ACCUMULATORS) + CHANGES.index(accumulator)
    return ACCUMULATORS.index(accumulator)


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
    anchors: Mapping[str, torch.Tensor] = _NO_ANCHORS,
) -> tuple[Segment, ...]:
    """Lays tensors and their companions out in flat buffers, in the order of the names.

    Raises:
        AveragingError: a tensor is missing or of a kind that cannot be averaged.
    """
    ends = [0] * (len(ACCUMULATORS) + len(CHANGES))
    segments: list[Segment] = []
    for name in names:
        if name not in tensors:
            raise AveragingError(f"tensor {name!r} belongs to the ring, but was not given")
        followers = companions.get(name, {})
        for label, live, companion, anchor in (
            (name, tensors[name], None, anchors.get(name)),
            *((f"{name} [{key}]", followers[key], key, None) for key in sorted(followers)),
        ):
            accumulator = accumulator_of(label, live)
            buffer = buffer_of(accumulator, is_change=anchor is not None)
            start = ends[buffer]
            if live.is_complex():
                start += start % 2  # pairs are viewed as complex numbers, which must be aligned
            stop = start + live.numel() * (2 if live.is_complex() else 1)
            ends[buffer] = stop
            segments.append(Segment(label, live, name, companion, accumulator, start, stop, anchor))
    return tuple(segments)


def rebound(
    segment: Segment,
    tensors: Mapping[str, torch.Tensor],
    companions: Mapping[str, Mapping[str, torch.Tensor]],
) -> Segment:
    """The same place of the same tensor in other storage.

    Raises:
        AveragingError: the tensor is not there any more, or of another form.
    """
    found = tensors.get(segment.parameter)
    if segment.companion is not None:
        found = companions.get(segment.parameter, {}).get(segment.companion)
    if found is None or describe(found) != describe(segment.live):
        raise AveragingError(
            f"{segment.name!r} was {describe(segment.live)} when the round began and is "
            f"{'gone' if found is None else describe(found)} now; expected the same"
        )
    return replace(segment, live=found)


def copies_of(segments: Sequence[Segment]) -> list[torch.Tensor]:
    """The live tensors as they are now, in host memory and their own dtypes."""
    return [torch.empty_like(s.live, device="cpu").copy_(s.live.detach()) for s in segments]


class Shadow:
    """Flat buffers in host memory, one per kind, kept from round to round.

    Attributes:
        buffers: 1-D, tensors in the order of `ACCUMULATORS`, then changes in that of `CHANGES`;
            those without elements are empty.
    """

    def __init__(self) -> None:
        self.buffers: tuple[torch.Tensor, ...] = ()

    def load(self, segments: Sequence[Segment], later: Container[str] = frozenset()) -> None:
        """Copies the live tensors, or their changes, in; buffers of the right size are reused.

        Args:
            later: names of segments whose values the all-reduce will bring.
        """
        dtypes = (*ACCUMULATORS, *CHANGES)
        lengths = [0] * len(dtypes)
        for segment in segments:
            lengths[segment.buffer] = max(lengths[segment.buffer], segment.stop)
        if [buffer.numel() for buffer in self.buffers] != lengths:
            self.buffers = ()  # the old ones go before the new ones come
            self.buffers = tuple(
                torch.zeros(length, dtype=dtype)
                for length, dtype in zip(lengths, dtypes, strict=True)
            )
        with torch.no_grad():
            for segment in segments:
                if segment.name not in later:
                    self._load_one(segment)

    def changes(self, segments: Sequence[Segment]) -> dict[str, torch.Tensor]:
        """By name, where the changes are, in the form of their anchors."""
        return {each.name: self._view(each) for each in segments if each.anchor is not None}

    def apply(
        self, segments: Sequence[Segment], sent: Sequence[torch.Tensor] | None = None
    ) -> None:
        """Copies the shadow, or the anchors, into the live tensors, in place.

        Args:
            sent: the tensors as the round took them, if they may have changed since: what they
                have changed is added.
        """
        with torch.no_grad():
            for position, segment in enumerate(segments):
                live = segment.live
                value = self._view(segment) if segment.anchor is None else segment.anchor
                if sent is not None:
                    value = _moved(value, live, sent[position])
                for dim, stride in enumerate(live.stride()):
                    if stride == 0 and live.shape[dim] > 1:  # expanded: one element, many places
                        live, value = live.narrow(dim, 0, 1), value.narrow(dim, 0, 1)
                live.copy_(value)

    def _load_one(self, segment: Segment) -> None:
        view, anchor = self._view(segment), segment.anchor
        if anchor is None:
            view.copy_(segment.live)
        else:
            view.copy_(as_held(anchor, segment.live.dtype))
            view.sub_(segment.live.detach().to(view.device))

    def _view(self, segment: Segment) -> torch.Tensor:
        flat = self.buffers[segment.buffer][segment.start : segment.stop]
        if segment.live.is_complex():
            flat = torch.view_as_complex(flat.view(-1, 2))
        return flat.view(segment.live.shape)


def _moved(value: torch.Tensor, live: torch.Tensor, sent: torch.Tensor) -> torch.Tensor:
    """The value and what happened to the live tensor since it was sent; the value if nothing did.

    In the dtype of averaging; where neither has changed since, exactly the value.
    """
    now = live.detach().to("cpu")
    if now.dtype is torch.bool:
        return torch.where(now == sent, value.to(torch.bool), now)
    return value + (now.to(value.dtype) - sent.to(value.dtype))


def as_held(anchor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The anchor as a live tensor of that dtype holds it after a round."""
    value = anchor.detach()
    return value if dtype == value.dtype else value.to(dtype)
