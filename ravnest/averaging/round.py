"""One averaging round in one ring, part by part; the averager puts the rings together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ravnest.averaging.agreement import (
    MemberHeader,
    digest_of,
    exchange_headers,
    find_problem,
)
from ravnest.averaging.allreduce import RingAllReduce, RingSettings
from ravnest.averaging.deadlines import Deadlines
from ravnest.averaging.feedback import Feedback
from ravnest.averaging.fragments import Part
from ravnest.averaging.lane import RingLane
from ravnest.averaging.outer import OuterOptimizer
from ravnest.averaging.shadow import (
    Segment,
    Shadow,
    copies_of,
    describe,
    rebound,
    segments_of,
)
from ravnest.averaging.sources import Sources, is_read_in_place
from ravnest.averaging.weighting import weighting_of
from ravnest.errors import AveragingError
from ravnest.plan.parts import RingMembership
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Frame, FrameKind

OUTER, ANCHOR = "(outer optimizer)", "(weights of the last round)"
FRAGMENT = "(fragment)"
"""What members have to agree on as well where rounds have these."""
_MAX_REASON_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class Share:
    """What this node brings to a round.

    Attributes:
        round_id: the round.
        num_samples: samples trained on since the last one.
        finished: no more steps.
    """

    round_id: int
    num_samples: int
    finished: bool


@dataclass(frozen=True, slots=True)
class RoundMemory:
    """What a ring keeps from round to round.

    Attributes:
        shadow: the buffers that rounds work on.
        outer: None: rounds average the tensors themselves.
        feedback: what compression drops, None when it is lost, or nothing is.
        deadlines: within a round, None for the transport's own.
    """

    shadow: Shadow
    outer: OuterOptimizer | None = None
    feedback: Feedback | None = None
    deadlines: Deadlines | None = None


class RingRound:
    """Prepare, agree, reduce, vote, apply: in this order, each once.

    Attributes:
        share: what this node brings.
        moves: tensors travel and are applied: members agree and at least one has samples.
    """

    def __init__(
        self,
        ring: RingMembership,
        transport: Transport,
        settings: RingSettings,
        share: Share,
        memory: RoundMemory,
    ) -> None:
        self.share = share
        self.moves = False
        self._lane = RingLane(ring, transport, memory.deadlines)
        self._deadlines = memory.deadlines
        self._settings = settings
        self._shadow = memory.shadow
        self._outer = memory.outer
        self._feedback = memory.feedback
        self._segments: Sequence[Segment] = ()
        self._in_place: Sequence[Segment] = ()
        self._part = Part()
        self._sent: Sequence[torch.Tensor] | None = None
        self._problem: str | None = None
        self._headers: Sequence[MemberHeader] = ()

    @property
    def num_samples(self) -> int:
        """Samples of all members."""
        return sum(header.num_samples for header in self._headers)

    @property
    def all_finished(self) -> bool:
        """Whether every member is finished."""
        return all(header.finished for header in self._headers)

    @property
    def num_sent_bytes(self) -> int:
        """Headers and payloads sent in this round."""
        return self._lane.num_sent_bytes

    def prepare(
        self,
        tensors: Mapping[str, torch.Tensor],
        companions: Mapping[str, Mapping[str, torch.Tensor]],
        part: Part,
        *,
        keeps: bool,
    ) -> None:
        """Copies tensors or changes into the shadow; if that fails, the header will say why.

        Args:
            part: of the ring's tensors, what this round is about.
            keeps: copies the tensors as well, because they change before they are applied to. Else
                some are not copied now, but read in the all-reduce.
        """
        self._part = part
        try:
            self._segments = self._lay_out(tensors, companions)
            if not keeps:
                self._in_place = [each for each in self._segments if is_read_in_place(each)]
            self._shadow.load(self._segments, later={each.name for each in self._in_place})
            if keeps:
                self._sent = copies_of(self._segments)
            if self.share.num_samples:  # else they count as nothing
                check_finite(self.changes())
        except AveragingError as error:
            self._problem = str(error)

    def rebind(
        self,
        tensors: Mapping[str, torch.Tensor],
        companions: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> None:
        """Names the storage to apply to, where that may have changed since `prepare`."""
        self._segments = [rebound(each, tensors, companions) for each in self._segments]

    def _lay_out(
        self,
        tensors: Mapping[str, torch.Tensor],
        companions: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> Sequence[Segment]:
        ring, part = self._lane.ring, self._part
        sizes = {name: tensor.numel() for name, tensor in tensors.items()}
        names = (*part.of(ring.parameters, sizes), *part.of(ring.buffers, sizes))
        anchors = {} if self._outer is None else self._outer.anchors
        return segments_of(names, tensors, companions, anchors)

    def agree(self) -> str | None:
        """Exchanges headers; returns why the round cannot be, the same text on every member."""
        description = {
            "(chunk_bytes)": str(self._settings.chunk_bytes),
            "(codec)": self._settings.codec.name,
            **self._about_outer(),
            **self._about_part(),
        } | {segment.name: describe(segment.live) for segment in self._segments}
        share = self.share
        own = MemberHeader(
            share.round_id,
            share.num_samples,
            share.finished,
            "" if self._problem is not None else digest_of(description),
            self._problem,
        )
        self._headers = exchange_headers(self._lane, own)
        self._problem = find_problem(self._lane, self._headers, description)
        self.moves = self._problem is None and self.num_samples > 0
        return self._problem

    def reduce(self) -> None:
        """The all-reduce, into the shadow; nothing when members disagree or nobody has samples."""
        if self.moves:
            ring = self._lane.ring
            weighting = weighting_of([h.num_samples for h in self._headers], ring.rank)
            RingAllReduce(
                self._lane,
                Sources(self._shadow.buffers, self._in_place),
                weighting,
                self.share.round_id,
                self._settings,
                self._feedback,
            ).run()

    def vote(self, problem: str | None) -> str | None:
        """Tells the ring whether this node is for applying; returns the first reason against it.

        A ring that disagreed does not vote: all its members know.
        """
        if self._problem is not None:
            return self._problem
        lane, round_id = self._lane, self.share.round_id
        purpose = f"vote of averaging round {round_id} in ring {lane.ring.ring_id}"
        reason = problem[:_MAX_REASON_LENGTH] if problem is not None else None
        scalars = lane.scalars(round=round_id, ok=problem is None, reason=reason)
        own = Frame(FrameKind.RING_VOTE, scalars=scalars)
        for rank, frame in enumerate(lane.gather(own, purpose=purpose)):
            lane.expect(frame, "round", round_id, purpose=purpose, origin=rank)
            ok, against = frame.scalars.get("ok"), frame.scalars.get("reason")
            if ok is True and against is None:
                continue
            if ok is not False or not isinstance(against, str):
                raise lane.fail(
                    purpose,
                    f"vote {ok!r} with reason {against!r}",
                    "yes, or no and why",
                    origin=rank,
                )
            return against
        return None

    def changes(self) -> dict[str, torch.Tensor]:
        """By name, before `reduce` this member's pseudo-gradients, after it the mean."""
        return self._shadow.changes(self._segments)

    def apply(self) -> None:
        """Copies the mean, or what the outer optimizer made of it, into the live tensors."""
        if self._deadlines is not None:
            self._deadlines.note(self._lane.longest_waits)
        if self.moves:
            self._shadow.apply(self._segments, self._sent)
            if self._feedback is not None:
                self._feedback.commit()

    def _about_part(self) -> dict[str, str]:
        part = self._part
        return {} if part.count == 1 else {FRAGMENT: f"{part.index + 1} of {part.count}"}

    def _about_outer(self) -> dict[str, str]:
        if self._outer is None:
            return {}
        names = [segment.name for segment in self._segments if segment.anchor is not None]
        return {OUTER: self._outer.text, ANCHOR: self._outer.digest(names)}


def check_finite(changes: Mapping[str, torch.Tensor]) -> None:
    """Raises AveragingError for the first pseudo-gradient with a NaN or an infinity in it.

    It would be in every member's weights after the round, and in momenta for ever.
    """
    for name, change in changes.items():
        if change.numel() and not _is_finite(change):
            raise AveragingError(
                f"{name!r} has a NaN or an infinity in it since the last round",
                hint="a lower learning rate, or clip_grad_norm, keeps training finite",
            )


def _is_finite(values: torch.Tensor) -> bool:
    real = torch.view_as_real(values) if values.is_complex() else values
    low, high = torch.aminmax(real)  # a NaN is both; needs no memory of the tensor's size
    return math.isfinite(low.item()) and math.isfinite(high.item())
