"""Averaging rounds between simulated clusters: who waits for whom, and how long it takes.

A round has three parts, as in ravnest/averaging/: headers, the ring all-reduce, votes; in each a
node walks its rings in order. A part of a ring begins when its last member has come, and ends for
all of them together. Members whose cluster has stopped are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from ravnest.simulate.cluster import ClusterRun, StageRun
from ravnest.simulate.lanes import Record
from ravnest.simulate.outages import end_of

CHUNKS_PER_SHARD, MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 4, 256 << 10, 4 << 20
"""What the all-reduce passes on at a time, as ravnest/averaging/ cuts it."""


class Part(IntEnum):
    """Parts of a round, in order."""

    HEADERS = 0
    REDUCE = 1
    VOTES = 2


@dataclass(frozen=True, slots=True)
class RingLink:
    """From a member of a ring to the next.

    Attributes:
        num_bytes: of one all-reduce.
        seconds: that they take.
        latency_s: of one message.
        record: gets the transmissions, None to forget them.
    """

    source: int
    target: int
    num_bytes: float
    seconds: float
    latency_s: float
    record: Record | None = None

    def chunk_s(self, num_hops: int) -> float:
        """Seconds that one chunk takes, where shards make that many hops."""
        if not self.num_bytes:
            return 0.0
        shard_bytes = self.num_bytes / num_hops
        wanted_bytes = max(shard_bytes / CHUNKS_PER_SHARD, MIN_CHUNK_BYTES)
        return self.seconds * min(shard_bytes, wanted_bytes, MAX_CHUNK_BYTES) / self.num_bytes


@dataclass(frozen=True, slots=True)
class RingRun:
    """A ring.

    Attributes:
        members: one stage per cluster, by cluster id.
        links: from each member to the next, by cluster id of the sender.
    """

    ring_id: int
    members: Mapping[int, StageRun]
    links: Mapping[int, RingLink]


@dataclass(frozen=True, slots=True)
class _Place:
    """What a stage waits for in a round."""

    number: int
    part: Part
    ring_id: int


class Rounds:
    """All rounds of a run.

    Attributes:
        durations_s: of each finished part, by number of the round: from its last member's coming.
        num_messages: all-reduces sent, by ring and cluster id of the sender.
    """

    def __init__(self, clusters: Sequence[ClusterRun], rings: Sequence[RingRun]) -> None:
        self._clusters = {cluster.cluster_id: cluster for cluster in clusters}
        self._rings = {ring.ring_id: ring for ring in rings}
        self._walks: dict[int, list[tuple[Part, int]]] = {}
        for cluster in clusters:
            for stage in cluster.stages:
                own = [r.ring_id for r in rings if r.members[cluster.cluster_id] is stage]
                self._walks[stage.node_id] = [(part, ring) for part in Part for ring in own]
        self._steps: dict[int, int] = dict.fromkeys(self._walks, 0)
        self._present: dict[_Place, dict[int, float]] = {}
        self._spans: dict[int, list[float]] = {}
        self.num_messages: dict[tuple[int, int], int] = {}

    @property
    def durations_s(self) -> list[float]:
        """Of every round that began, from when its last member came to when its last left."""
        return [end_s - begin_s for begin_s, end_s in self._spans.values()]

    @property
    def ends_s(self) -> list[float]:
        """When each round ended."""
        return [end_s for _, end_s in self._spans.values()]

    def take(self, cluster: ClusterRun) -> None:
        """Notes which stages of a cluster have come to a round."""
        for stage in cluster.waiting:
            self._enter(cluster, stage, stage.begin_s)
        cluster.waiting.clear()

    def play(self) -> list[ClusterRun]:
        """Plays every part whose members are all there; the clusters that can go on."""
        resumed: dict[int, ClusterRun] = {}
        is_moving = True
        while is_moving:
            is_moving = False
            for place in sorted(self._present, key=lambda p: (p.number, p.part, p.ring_id)):
                if place in self._present and self._is_complete(place):
                    is_moving = True
                    for cluster in self._play(place):
                        resumed[cluster.cluster_id] = cluster
        return [resumed[cluster_id] for cluster_id in sorted(resumed)]

    def _enter(self, cluster: ClusterRun, stage: StageRun, now: float) -> None:
        walk, step = self._walks[stage.node_id], self._steps[stage.node_id]
        number = stage.script.entries[stage.position].number
        if not walk:  # it stores nothing that is averaged
            cluster.resume(stage, now)
            return
        place = _Place(number, *walk[step])
        self._present.setdefault(place, {})[cluster.cluster_id] = now

    def _is_complete(self, place: _Place) -> bool:
        present = self._present[place]
        return all(
            cluster_id in present or self._clusters[cluster_id].has_stopped
            for cluster_id in self._rings[place.ring_id].members
        )

    def _play(self, place: _Place) -> list[ClusterRun]:
        """One part of one ring; the clusters one of whose stages has left the round."""
        present = self._present.pop(place)
        begin_s = self._without_the_stopped(present)
        if not present:
            return []
        ring = self._rings[place.ring_id]
        if place.part is Part.REDUCE:
            end_s = self._reduce(ring, sorted(present), begin_s)
        else:
            end_s = begin_s + _around(ring, sorted(present))
        first, last = self._spans.setdefault(place.number, [begin_s, end_s])
        self._spans[place.number] = [first, max(last, end_s)]
        if place.part is Part.HEADERS:
            self._spans[place.number][0] = max(first, begin_s)
        return [
            self._clusters[cluster_id]
            for cluster_id in sorted(present)
            if self._leave(self._clusters[cluster_id], ring.members[cluster_id], end_s)
        ]

    def _without_the_stopped(self, present: dict[int, float]) -> float:
        """Removes members that stop before the last has come; when the last of the rest came."""
        begin_s = 0.0
        while present:
            begin_s = max(present.values())
            gone = [c for c in present if self._clusters[c].stop_s < begin_s]
            for cluster_id in gone:
                self._clusters[cluster_id].stop()
                del present[cluster_id]
            if not gone:
                break
        return begin_s

    def _leave(self, cluster: ClusterRun, stage: StageRun, now: float) -> bool:
        """Goes on to the next part, or out of the round: then true."""
        if cluster.stop_s < now:
            cluster.stop()
            return False
        walk = self._walks[stage.node_id]
        self._steps[stage.node_id] = (self._steps[stage.node_id] + 1) % len(walk)
        if self._steps[stage.node_id]:
            self._enter(cluster, stage, now)
            return False
        cluster.resume(stage, now)
        return True

    def _reduce(self, ring: RingRun, present: Sequence[int], begin_s: float) -> float:
        """When an all-reduce is over: bound by the slowest uplink, or by the way of one chunk."""
        if len(present) < 2:
            return begin_s
        end_s = begin_s + _way(ring, present)
        for cluster_id in present:
            stage, link = ring.members[cluster_id], ring.links[cluster_id]
            start_s = max(begin_s, stage.uplink_free_s)
            sent_s = end_of(start_s, link.seconds, stage.outages)
            stage.uplink_free_s = sent_s
            if link.record is not None:
                link.record.append((0, len(link.record), start_s, sent_s))
            key = (ring.ring_id, cluster_id)
            self.num_messages[key] = self.num_messages.get(key, 0) + 1
            end_s = max(end_s, sent_s + link.latency_s)
        return end_s


def _around(ring: RingRun, present: Sequence[int]) -> float:
    """Seconds until a small frame of every member has reached every other."""
    latencies = [ring.links[cluster_id].latency_s for cluster_id in present]
    return math.fsum(latencies) - min(latencies) if len(present) > 1 else 0.0


def _way(ring: RingRun, present: Sequence[int]) -> float:
    """Seconds until the last chunk of a shard has been all the way around, sent by the first.

    2 (C - 1) hops in a ring of C, C hops being one way around; a chunk goes on as soon as it came.
    """
    links = [ring.links[cluster_id] for cluster_id in present]
    size = len(links)
    hops = 2 * (size - 1)
    around = math.fsum(link.latency_s + link.chunk_s(hops) for link in links)
    return around * hops / size + max(link.seconds / hops - link.chunk_s(hops) for link in links)
