"""One cluster run event by event: nodes that compute serially, links that send serially.

A stage does the entries of its script one after the other. Each starts when the one before is done
and the messages it awaits have arrived. A message occupies its sender's uplink after everything
queued there before it, begins to come one latency later, and occupies its receiver's downlink after
everything that began to come before it, each for its bytes at that end's own rate; it has arrived
when the last byte has passed both. Events are the ends of entries, at most one of each stage, and
messages that begin to come.

Clusters meet in averaging rounds alone (`rounds.py`), so each has a queue of its own, ordered by
time and stage. Knows nothing of plans.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ravnest.simulate.lanes import OutgoingLane, Record
from ravnest.simulate.outages import Outages, end_of
from ravnest.simulate.script import AVERAGING, UPDATE, VALUES, Entry, Script


@dataclass(frozen=True, slots=True)
class Mark:
    """Counters of a stage at the end of one of its steps, or of the run.

    Attributes:
        busy_s: it has computed.
        averaging_s: it has spent in rounds.
        num_sent: messages by outgoing lane.
    """

    time_s: float
    busy_s: float
    averaging_s: float
    num_sent: tuple[int, ...]


ZERO_MARK = Mark(0.0, 0.0, 0.0, ())


class StageRun:
    """One node at work.

    Args:
        seconds: that an entry takes, by its kind.
        num_lanes: incoming lanes.
        marked_steps: steps at whose end a mark is set.
        record: gets every entry that takes time, None to forget them.
    """

    __slots__ = (
        *("index", "node_id", "script", "seconds", "outages", "record", "marked_steps"),
        *("incoming", "outgoing", "variation", "random", "position", "is_blocked", "free_s"),
        *("begin_s", "uplink_free_s", "downlink_free_s", "busy_s", "averaging_s", "num_steps"),
        *("marks", "step_ends_s"),
    )

    def __init__(
        self,
        index: int,
        node_id: int,
        script: Script,
        seconds: Sequence[float],
        num_lanes: int,
        marked_steps: Sequence[int],
        outages: Outages = (),
        record: Record | None = None,
    ) -> None:
        self.index = index
        self.node_id = node_id
        self.script = script
        self.seconds = tuple(seconds)
        self.outages = outages
        self.record = record
        self.marked_steps = frozenset(marked_steps)
        self.incoming: list[list[float]] = [[] for _ in range(num_lanes)]
        self.outgoing: list[OutgoingLane[StageRun] | None] = [None] * num_lanes
        self.variation: tuple[float, float] = (0.0, 0.0)
        self.random: Random | None = None
        self.position = 0
        self.is_blocked = False
        self.free_s = 0.0
        self.begin_s = 0.0
        self.uplink_free_s = 0.0
        self.downlink_free_s = 0.0
        self.busy_s = 0.0
        self.averaging_s = 0.0
        self.num_steps = 0
        self.marks: dict[int, Mark] = {}
        self.step_ends_s: list[float] = []

    @property
    def is_done(self) -> bool:
        """Whether it has reached the end of its script."""
        return self.position == len(self.script.entries)

    def vary(self, coefficient: float, random: Random) -> None:
        """Makes the time of every pass and step random: log-normal with the mean as it was."""
        variance = math.log1p(coefficient**2)
        self.variation = (-variance / 2, math.sqrt(variance))
        self.random = random

    def mark(self) -> Mark:
        """Its counters now."""
        num_sent = tuple(0 if lane is None else lane.num_sent for lane in self.outgoing)
        return Mark(self.free_s, self.busy_s, self.averaging_s, num_sent)


class ClusterRun:
    """One cluster, run as far as it gets without the others.

    Attributes:
        waiting: stages that have come to a round, in the order in which they came.
        stop_s: when it ends, whatever it is doing then; infinite without a failure.
        has_stopped: it has ended by that; no stage will do anything more.
    """

    def __init__(self, cluster_id: int, stages: Sequence[StageRun], stop_s: float) -> None:
        self.cluster_id = cluster_id
        self.stages = tuple(stages)
        self.stop_s = stop_s
        self.has_stopped = False
        self.waiting: list[StageRun] = []
        self._queue: list[tuple[float, int]] = []  # ends of entries, by stage
        self._coming: list[tuple[float, int, int, float, OutgoingLane[StageRun]]] = []
        self._num_sent = 0
        for stage in self.stages:
            self._begin_next(stage)

    @property
    def is_done(self) -> bool:
        """Whether every stage has reached the end of its script."""
        return all(stage.is_done for stage in self.stages)

    def advance(self) -> None:
        """Runs until no stage can go on by itself."""
        queue, coming, stages = self._queue, self._coming, self.stages
        while queue or coming:
            is_message = bool(coming) and (not queue or coming[0][0] <= queue[0][0])
            if (coming[0][0] if is_message else queue[0][0]) > self.stop_s:
                self.stop()
                return
            if is_message:
                now, _, _, last_s, lane = heapq.heappop(coming)
                self._receive(lane, now, last_s)
            else:
                now, index = heapq.heappop(queue)
                self._finish(stages[index], now)

    def stop(self) -> None:
        """Ends it at `stop_s`."""
        self.has_stopped = True
        self._queue.clear()
        self._coming.clear()
        self.waiting.clear()

    def resume(self, stage: StageRun, now: float) -> None:
        """A stage that waited in a round leaves it."""
        entry = stage.script.entries[stage.position]
        stage.averaging_s += now - stage.begin_s
        if stage.record is not None:
            stage.record.append((AVERAGING, entry.number, stage.begin_s, now))
        stage.free_s = now
        stage.position += 1
        self._begin_next(stage)

    def _finish(self, stage: StageRun, now: float) -> None:
        entry = stage.script.entries[stage.position]
        stage.position += 1
        stage.free_s = now
        kind = entry.kind
        if kind != VALUES:
            stage.busy_s += now - stage.begin_s
            if stage.record is not None:
                stage.record.append((kind, entry.number, stage.begin_s, now))
        for slot in entry.sends:
            self._send(stage, slot, now)
        if kind == UPDATE:
            stage.num_steps += 1
            stage.step_ends_s.append(now)
            if entry.number in stage.marked_steps:
                stage.marks[entry.number] = stage.mark()
        self._begin_next(stage)

    def _send(self, stage: StageRun, slot: int, now: float) -> None:
        lane = stage.outgoing[slot]
        assert lane is not None
        begin_s = stage.uplink_free_s if stage.uplink_free_s > now else now
        end_s = begin_s + lane.sending_s
        if stage.outages:
            end_s = end_of(begin_s, lane.sending_s, stage.outages)
        stage.uplink_free_s = end_s
        if lane.record is not None:
            lane.record.append((0, lane.num_sent, begin_s, end_s))
        lane.num_sent += 1
        self._num_sent += 1
        delay_s = lane.delay_s(begin_s)
        # Of those that begin to come at once, that of the last stage is the first.
        message = (begin_s + delay_s, -stage.index, self._num_sent, end_s + delay_s, lane)
        heapq.heappush(self._coming, message)

    def _receive(self, lane: OutgoingLane[StageRun], now: float, last_s: float) -> None:
        """A message begins to come, whose last byte the sender's side lets come at `last_s`."""
        stage = lane.target
        begin_s = stage.downlink_free_s if stage.downlink_free_s > now else now
        end_s = begin_s + lane.receiving_s
        if stage.outages:
            end_s = end_of(begin_s, lane.receiving_s, stage.outages)
        stage.downlink_free_s = end_s
        lane.arrivals.append(end_s if end_s > last_s else last_s)
        if stage.is_blocked:
            self._begin_next(stage)

    def _begin_next(self, stage: StageRun) -> None:
        """Begins the next entry if all it awaits comes: its end becomes an event."""
        entries = stage.script.entries
        if stage.position == len(entries):
            return
        entry = entries[stage.position]
        ready_s = stage.free_s
        for slot, number in entry.awaits:
            arrivals = stage.incoming[slot]
            if len(arrivals) <= number:
                stage.is_blocked = True
                return
            if arrivals[number] > ready_s:
                ready_s = arrivals[number]
        stage.is_blocked = False
        stage.begin_s = ready_s
        if entry.kind == AVERAGING:
            self.waiting.append(stage)
            return
        seconds = self._seconds(stage, entry)
        end_s = ready_s + seconds
        if stage.outages:
            end_s = end_of(ready_s, seconds, stage.outages)
        heapq.heappush(self._queue, (end_s, stage.index))

    def _seconds(self, stage: StageRun, entry: Entry) -> float:
        seconds = stage.seconds[entry.kind]
        if stage.random is not None and seconds:
            seconds *= stage.random.lognormvariate(*stage.variation)
        return seconds
