"""Averaging rounds of one node over all its rings."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ravnest.averaging.allreduce import RingSettings
from ravnest.averaging.deadlines import Deadlines
from ravnest.averaging.feedback import Feedback
from ravnest.averaging.flight import Flight
from ravnest.averaging.fragments import Part
from ravnest.averaging.memberships import check_memberships
from ravnest.averaging.outer import OuterOptimizer
from ravnest.averaging.round import RingRound, RoundMemory, Share
from ravnest.averaging.shadow import Shadow
from ravnest.errors import AveragingError
from ravnest.plan.parts import RingMembership
from ravnest.transport.interface import Transport
from ravnest.wire.frame import Codec

_log = logging.getLogger(__name__)

CHUNK_BYTES = 4 << 20
"""Larger ones leave the processor's caches before they have been added up."""
WINDOW = 8
"""Together 32 MiB under way at most: what a link of 1 Gbps holds in a quarter of a second."""

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
        waited_s: how long the caller stood still for it; less where it trained meanwhile.
        sent_bytes: headers and payloads this node sent.
    """

    round_id: int
    num_samples: int
    applied: bool
    all_finished: bool
    duration_s: float
    waited_s: float
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
        timeout_s: of the transport; with it, members that are in a round are waited for by how long
            they took in earlier ones, see `Deadlines`. None: for as long as the transport waits.
        num_fragments: each round averages one of so many parts of the tensors, in turn.

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
        num_fragments: int = 1,
        timeout_s: float | None = None,
    ) -> None:
        if min(chunk_bytes, window, num_fragments) < 1:
            raise AveragingError(
                f"chunk_bytes is {chunk_bytes}, window {window} and num_fragments {num_fragments}; "
                "expected all to be positive"
            )
        check_memberships(node_id, rings)
        self._rings = sorted(rings, key=lambda ring: ring.ring_id)
        self._transport = transport
        self._settings = RingSettings(chunk_bytes, codec, window)
        self._outer = outer
        self._num_fragments = num_fragments
        self._shadows: dict[int, Shadow] = {}
        self._feedbacks: dict[tuple[int, int], Feedback] = {}
        self._flight: Flight | None = None
        self._deadlines = [
            None if timeout_s is None else Deadlines(timeout_s) for _ in range(num_fragments)
        ]

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
        share = Share(round_id, num_samples, finished)
        started_s = time.perf_counter()
        rounds = self._prepared(share, tensors, companions)
        with self._dropping_shadows():
            _exchange(rounds)
            self._apply(rounds)
        duration_s = time.perf_counter() - started_s
        return _result(share, rounds, duration_s=duration_s, waited_s=duration_s)

    def begin(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        round_id: int,
        num_samples: int,
        companions: Mapping[str, Mapping[str, torch.Tensor]] = _NO_COMPANIONS,
    ) -> None:
        """Starts a round with the tensors as they are now; they may change before `land`.

        Its messages come and go in a thread of its own. Others may take part by `average`: the
        messages are the same. Arguments and errors are those of `average`.
        """
        assert self._flight is None, "one round at a time"
        share = Share(round_id, num_samples, finished=False)
        rounds = self._prepared(share, tensors, companions, keeps=True)
        self._flight = Flight(share, rounds, _exchange)

    def land(
        self,
        tensors: Mapping[str, torch.Tensor],
        companions: Mapping[str, Mapping[str, torch.Tensor]] = _NO_COMPANIONS,
    ) -> RoundResult:
        """Waits for the round that `begin` started, and adds its correction to the tensors.

        What they have changed since `begin` is added to what the round made of them (Kale et al.
        2025, "Eager Updates for Overlapped Communication and Computation in DiLoCo"; Douillard et
        al. 2025, "Streaming DiLoCo with Overlapping Communication"): counters go on counting, and
        members are the same again, up to what each has trained since.

        Args:
            tensors, companions: the same as given to `begin`, perhaps in other storage.

        Raises:
            AveragingError, ProtocolError, TransportError: as `average`; nothing was applied.
        """
        assert self._flight is not None, "no round is under way"
        flight, self._flight = self._flight, None
        asked_s = time.perf_counter()
        with self._dropping_shadows():
            flight.join()
            for each in flight.rounds:
                each.rebind(tensors, companions)
            self._apply(flight.rounds)
        return _result(
            flight.share,
            flight.rounds,
            duration_s=flight.duration_s,
            waited_s=time.perf_counter() - asked_s,
        )

    def feedback_of(self, ring_id: int, fragment: int = 0) -> Feedback:
        """What compressing has dropped so far in a ring and will come with the next round."""
        return self._feedbacks.setdefault((ring_id, fragment), Feedback())

    def _prepared(
        self,
        share: Share,
        tensors: Mapping[str, torch.Tensor],
        companions: Mapping[str, Mapping[str, torch.Tensor]],
        *,
        keeps: bool = False,
    ) -> list[RingRound]:
        if share.round_id < 0 or share.num_samples < 0:
            raise AveragingError(
                f"round_id is {share.round_id} and num_samples {share.num_samples}; "
                "expected 0 or more"
            )
        rounds = [self._round(ring, share) for ring in self._rings if ring.size > 1]
        part = Part(share.round_id % self._num_fragments, self._num_fragments)
        for each in rounds:
            each.prepare(tensors, companions, part, keeps=keeps)
        return rounds

    def _round(self, ring: RingMembership, share: Share) -> RingRound:
        shadow = self._shadows.setdefault(ring.ring_id, Shadow())
        fragment, feedback = share.round_id % self._num_fragments, None
        if self._outer is not None and self._settings.codec is not Codec.RAW:
            feedback = self.feedback_of(ring.ring_id, fragment)
        memory = RoundMemory(shadow, self._outer, feedback, self._deadlines[fragment])
        return RingRound(ring, self._transport, self._settings, share, memory)

    def _apply(self, rounds: Sequence[RingRound]) -> None:
        if self._outer is not None:
            self._outer.step(
                {k: v for each in rounds if each.moves for k, v in each.changes().items()}
            )
        for each in rounds:
            each.apply()

    @contextmanager
    def _dropping_shadows(self) -> Iterator[None]:
        """When a round fails, messages that are still under way may refer to these buffers."""
        try:
            yield
        except BaseException:
            self._shadows.clear()
            raise


def _exchange(rounds: Sequence[RingRound]) -> None:
    """All of a round that needs the other members; raises AveragingError when it may not be."""
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


def _result(
    share: Share, rounds: Sequence[RingRound], *, duration_s: float, waited_s: float
) -> RoundResult:
    result = RoundResult(
        round_id=share.round_id,
        num_samples=max((each.num_samples for each in rounds), default=share.num_samples),
        applied=any(each.moves for each in rounds),
        all_finished=share.finished and all(each.all_finished for each in rounds),
        duration_s=duration_s,
        waited_s=waited_s,
        sent_bytes=sum(each.num_sent_bytes for each in rounds),
    )
    _log.debug("averaged: %s", result)
    return result
