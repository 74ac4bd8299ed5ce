"""Averaging rounds of one node over all its rings."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ravnest.averaging.allreduce import RingSettings
from ravnest.averaging.feedback import Feedback
from ravnest.averaging.outer import OuterOptimizer
from ravnest.averaging.round import RingRound, Share
from ravnest.averaging.shadow import Shadow
from ravnest.errors import AveragingError
from ravnest.plan.model import RingMembership
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Codec

_log = logging.getLogger(__name__)

CHUNK_BYTES = (2 << 20) - (4 << 10)
"""What a transport sends in one piece together with its header; each piece has a price."""
WINDOW = 8
"""Together 16 MiB under way: what a link of 1 Gbps holds in an eighth of a second."""

_NO_COMPANIONS: Mapping[str, Mapping[str, torch.Tensor]] = {}


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What came out of a round.

    Attributes:
        round_id: as given.
        num_samples: samples all members trained on since the last round.
        applied: the live tensors were overwritten with the mean.
        all_finished: every member of every ring has no more steps.
        duration_s: wall time of the round, waiting for the other members included.
        sent_bytes: headers and payloads this node sent.
    """

    round_id: int
    num_samples: int
    applied: bool
    all_finished: bool
    duration_s: float
    sent_bytes: int


class Averager:
    """Averages the tensors of one node with the other members of its rings.

    A round has four parts, and in each a node walks its rings in order of `ring_id`: headers
    (do all agree?), the all-reduce into a shadow, votes, and the copy into the live tensors. So
    rounds cannot lock up, however the rings are linked: of all (part, ring) that are not
    finished everywhere, all members of the first have finished everything before it, so all of
    them are in it, and within it nobody waits for anything else (see `RingAllReduce`).

    A problem that a member finds in one ring (a disagreement in the headers) is its vote in
    its other rings, so their members refuse the round as well. After such an AveragingError all
    lanes are clean and the next round may be tried. After any other error messages may be under
    way: the node has to abort its transport, which ends the round of the others. In both
    cases no live tensor has been touched. (A member lost after its own vote and before the
    last one is counted may leave a round applied by some and not by others, as in any commit
    without a coordinator that survives; all who miss the vote raise.)

    Args:
        node_id: this node.
        rings: its memberships; rings of one member cause no traffic.
        transport: started; lanes `ring-<id>` are this object's own.
        chunk_bytes: largest chunk, in bytes of float32, float64 or int64; alike on all members.
        codec: layout of float32 chunks on the wire; alike on all members. A lossy one rounds
            partial sums and the mean, the same on every member. With an outer optimizer it is for
            changes alone, and what it drops goes into the next round.
        window: messages sent ahead, at most the `window` the transport was made with.
        outer: rounds exchange how far its parameters are from its anchors, and it makes a step
            along the mean. None: rounds average the parameters themselves. Whatever it does not
            know (buffers, frozen parameters, companions) is averaged as it is.

    Raises:
        AveragingError: the memberships contradict each other or an argument is out of range.
    """

    def __init__(
        self,
        node_id: int,
        rings: Sequence[RingMembership],
        transport: Transport,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        codec: Codec = Codec.RAW,
        window: int = WINDOW,
        outer: OuterOptimizer | None = None,
    ) -> None:
        if chunk_bytes < 1 or window < 1:
            raise AveragingError(
                f"chunk_bytes is {chunk_bytes} and window {window}; expected both to be positive"
            )
        _check_memberships(node_id, rings)
        self._rings = sorted(rings, key=lambda ring: ring.ring_id)
        self._transport = transport
        self._settings = RingSettings(chunk_bytes, codec, window)
        self._outer = outer
        self._shadows: dict[int, Shadow] = {}
        self._feedbacks: dict[int, Feedback] = {}

    def average(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        round_id: int,
        num_samples: int,
        finished: bool,
        companions: Mapping[str, Mapping[str, torch.Tensor]] = _NO_COMPANIONS,
    ) -> RoundResult:
        """Takes part in one round; every member of every ring has to call it.

        Floating and complex tensors get the mean weighted by the members' samples (added up in
        float32, or float64 where the tensor is float64 or complex128), integers and bools the
        maximum. When no member has any sample nothing is moved: all are still identical.

        Args:
            tensors: live parameters and buffers by original name, at least those of the rings; any
                rank, stride and device. They are overwritten in place.
            round_id: number of the round, the same on all members.
            num_samples: samples this node trained on since the last round.
            finished: this node has no more steps; it goes on taking part until all are finished.
            companions: per parameter name further tensors that follow it (optimizer state), by
                name, averaged the same way.

        Raises:
            AveragingError: members disagree or cannot take part; every member of the ring raises
                it with the same reason. Nothing was applied.
            ProtocolError: a member sent something else than expected.
            TransportError: a member has failed, gone or fallen silent.
        """
        if round_id < 0 or num_samples < 0:
            raise AveragingError(
                f"round_id is {round_id} and num_samples {num_samples}; expected 0 or more"
            )
        started_s = time.perf_counter()
        share = Share(round_id, num_samples, finished)
        rounds = [self._round(ring, share) for ring in self._rings if ring.size > 1]
        try:
            self._play(rounds, tensors, companions)
        except BaseException:
            # Messages that are still under way may refer to these buffers.
            self._shadows.clear()
            raise
        result = RoundResult(
            round_id=round_id,
            num_samples=max((each.num_samples for each in rounds), default=num_samples),
            applied=any(each.moves for each in rounds),
            all_finished=finished and all(each.all_finished for each in rounds),
            duration_s=time.perf_counter() - started_s,
            sent_bytes=sum(each.num_sent_bytes for each in rounds),
        )
        _log.debug("averaged: %s", result)
        return result

    def feedback_of(self, ring_id: int) -> Feedback:
        """What compressing has dropped so far in a ring and will come with the next round."""
        return self._feedbacks.setdefault(ring_id, Feedback())

    def _round(self, ring: RingMembership, share: Share) -> RingRound:
        shadow = self._shadows.setdefault(ring.ring_id, Shadow())
        feedback = None
        if self._outer is not None and self._settings.codec is not Codec.RAW:
            feedback = self.feedback_of(ring.ring_id)
        return RingRound(
            ring, self._transport, self._settings, share, shadow, self._outer, feedback
        )

    def _play(
        self,
        rounds: Sequence[RingRound],
        tensors: Mapping[str, torch.Tensor],
        companions: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> None:
        for each in rounds:
            each.prepare(tensors, companions)
        problem: str | None = None
        for each in rounds:
            found = each.agree()
            problem = problem or found
        for each in rounds:
            each.reduce()
        for each in rounds:
            found = each.vote(problem)
            problem = problem or found
        if problem is not None:
            raise AveragingError(
                f"averaging round {rounds[0].share.round_id} was not applied: {problem}"
            )
        if self._outer is not None:
            self._outer.step(
                {k: v for each in rounds if each.moves for k, v in each.changes().items()}
            )
        for each in rounds:
            each.apply()


def _check_memberships(node_id: int, rings: Sequence[RingMembership]) -> None:
    owner: dict[str, int] = {}
    for ring in rings:
        if len(ring.members) != ring.size or len(set(ring.members)) != ring.size:
            raise AveragingError(
                f"ring {ring.ring_id} has members {ring.members};"
                f" expected {ring.size} different nodes"
            )
        if not 0 <= ring.rank < ring.size or ring.members[ring.rank] != node_id:
            raise AveragingError(
                f"ring {ring.ring_id} has rank {ring.rank} for node {node_id};"
                f" expected its position in {ring.members}"
            )
        for name in (*ring.parameters, *ring.buffers):
            if name in owner:
                raise AveragingError(
                    f"{name!r} belongs to ring {owner[name]} and ring {ring.ring_id};"
                    " expected one ring per tensor, named once"
                )
            owner[name] = ring.ring_id
    if len({ring.ring_id for ring in rings}) != len(rings):
        ids = [ring.ring_id for ring in rings]
        raise AveragingError(f"ring ids are {ids}; expected every ring once")
