"""One averaging round in one ring, part by part; the averager puts the rings together."""

from __future__ import annotations

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
from ravnest.averaging.lane import RingLane
from ravnest.averaging.shadow import Segment, Shadow, describe, segments_of
from ravnest.averaging.weighting import weighting_of
from ravnest.errors import AveragingError
from ravnest.plan.model import RingMembership
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Frame, FrameKind

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
        shadow: Shadow,
    ) -> None:
        self.share = share
        self.moves = False
        self._lane = RingLane(ring, transport)
        self._settings = settings
        self._shadow = shadow
        self._segments: Sequence[Segment] = ()
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
    ) -> None:
        """Copies the live tensors into the shadow; if that fails, the header will say why."""
        ring = self._lane.ring
        try:
            self._segments = segments_of((*ring.parameters, *ring.buffers), tensors, companions)
            self._shadow.load(self._segments)
        except AveragingError as error:
            self._problem = str(error)

    def agree(self) -> str | None:
        """Exchanges headers; returns why the round cannot be, the same text on every member."""
        description = {
            "(chunk_bytes)": str(self._settings.chunk_bytes),
            "(codec)": self._settings.codec.name,
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
                self._lane, self._shadow.buffers, weighting, self.share.round_id, self._settings
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

    def apply(self) -> None:
        """Copies the mean into the live tensors."""
        if self.moves:
            self._shadow.apply(self._segments)
