"""From clusters that have run to figures: steady state, shares, staleness, words about failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from ravnest.plan.identity import node_name
from ravnest.plan.prediction import PlannedRun, Traffic
from ravnest.simulate.cluster import ZERO_MARK, ClusterRun, Mark, StageRun
from ravnest.simulate.lanes import Record
from ravnest.simulate.result import (
    ClusterResult,
    FailureResult,
    Interval,
    LinkKey,
    LinkResult,
    NodeResult,
    Timeline,
    Transmission,
    Work,
)
from ravnest.simulate.rounds import RingRun, Rounds
from ravnest.simulate.script import (
    AVERAGING,
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    UPDATE,
)
from ravnest.simulate.settings import LOST_AFTER_S, Failure

_WORKS = {
    FORWARD: Work.FORWARD,
    BACKWARD: Work.BACKWARD,
    BACKWARD_INPUT: Work.BACKWARD_INPUT,
    BACKWARD_WEIGHT: Work.BACKWARD_WEIGHT,
    UPDATE: Work.UPDATE,
    AVERAGING: Work.AVERAGING,
}


class Measured:
    """One cluster between two of its steps.

    Args:
        window: the steps at whose ends it opens and closes; -1 opens it at the start of the run.
            A cluster that stopped before is measured as far as it came, from the start.
    """

    def __init__(self, cluster: ClusterRun, window: tuple[int, int]) -> None:
        self.cluster = cluster
        opening, closing = window
        self._is_whole = all(closing in stage.marks for stage in cluster.stages)
        self._opening = opening if self._is_whole else -1
        self._closing = closing

    def marks(self, stage: StageRun) -> tuple[Mark, Mark]:
        """A stage's counters at both ends."""
        opening = stage.marks.get(self._opening, ZERO_MARK)
        return opening, stage.marks[self._closing] if self._is_whole else stage.mark()

    def trained_s(self, stage: StageRun) -> float:
        """Time between both ends, rounds not counted."""
        opening, closing = self.marks(stage)
        return closing.time_s - opening.time_s - (closing.averaging_s - opening.averaging_s)

    @property
    def step_time_s(self) -> float:
        """Seconds per step on the root; infinite without a step."""
        root = self.cluster.stages[0]
        num_steps = self._closing - self._opening if self._is_whole else root.num_steps
        return self.trained_s(root) / num_steps if num_steps else math.inf

    def utilisation(self, stage: StageRun) -> float:
        """Share of the time in which the stage computes."""
        opening, closing = self.marks(stage)
        return _share(closing.busy_s - opening.busy_s, self.trained_s(stage))

    def loads(self, stage: StageRun) -> dict[int, float]:
        """Share of the time in which its link is busy, by outgoing lane."""
        opening, closing = self.marks(stage)
        before = opening.num_sent or (0,) * len(closing.num_sent)
        return {
            slot: _share(
                (closing.num_sent[slot] - before[slot]) * lane.seconds, self.trained_s(stage)
            )
            for slot, lane in enumerate(stage.outgoing)
            if lane is not None
        }


def node_results(measured: Iterable[Measured]) -> tuple[NodeResult, ...]:
    """In order of cluster and stage."""
    return tuple(
        NodeResult(
            node_id=stage.node_id,
            cluster_id=each.cluster.cluster_id,
            stage=stage.index,
            utilisation=each.utilisation(stage),
            uplink=math.fsum(each.loads(stage).values()),
            num_steps=stage.num_steps,
            staleness=stage.script.staleness(stage.num_steps),
        )
        for each in measured
        for stage in each.cluster.stages
    )


def cluster_result(measured: Measured, run: PlannedRun, stopped_by: int | None) -> ClusterResult:
    """What one cluster did."""
    cluster = measured.cluster
    samples_per_step = run.update_frequency * run.samples_per_microbatch
    applied = min(stage.num_steps for stage in cluster.stages)
    end_s = cluster.stop_s if cluster.has_stopped else max(s.free_s for s in cluster.stages)
    step_time_s = measured.step_time_s
    return ClusterResult(
        cluster_id=cluster.cluster_id,
        num_steps=cluster.stages[0].num_steps,
        num_samples=applied * samples_per_step,
        step_time_s=step_time_s,
        samples_per_s=_share(samples_per_step, step_time_s),
        end_s=end_s,
        stopped_by=stopped_by if cluster.has_stopped else None,
    )


def link_results(
    measured: Iterable[Measured], rings: Sequence[RingRun], rounds: Rounds, duration_s: float
) -> tuple[LinkResult, ...]:
    """In order of source, target and traffic."""
    results = [
        LinkResult(
            source=stage.node_id,
            target=lane.target.node_id,
            traffic=lane.traffic,
            num_messages=lane.num_sent,
            num_bytes=lane.num_sent * lane.num_bytes,
            load=each.loads(stage)[slot],
        )
        for each in measured
        for stage in each.cluster.stages
        for slot, lane in enumerate(stage.outgoing)
        if lane is not None
    ]
    results += _ring_results(rings, rounds, duration_s)
    return tuple(sorted(results, key=lambda link: (link.source, link.target, link.traffic)))


def _ring_results(rings: Sequence[RingRun], rounds: Rounds, duration_s: float) -> list[LinkResult]:
    """One per pair of nodes, all their rings together."""
    messages: Counter[tuple[int, int]] = Counter()
    num_bytes: Counter[tuple[int, int]] = Counter()
    seconds: dict[tuple[int, int], float] = {}
    for ring in rings:
        for cluster_id, link in ring.links.items():
            pair = link.source, link.target
            count = rounds.num_messages.get((ring.ring_id, cluster_id), 0)
            messages[pair] += count
            num_bytes[pair] += round(count * link.num_bytes)
            seconds[pair] = seconds.get(pair, 0.0) + count * link.seconds
    return [
        LinkResult(
            *pair,
            Traffic.AVERAGING,
            num_messages=messages[pair],
            num_bytes=num_bytes[pair],
            load=_share(seconds[pair], duration_s),
        )
        for pair in seconds
    ]


def total_samples_per_s(
    clusters: Sequence[ClusterResult], rounds: Rounds, run: PlannedRun
) -> float:
    """Of all clusters that ran to the end, averaging and waiting for each other counted.

    From round to round when the run has two that `steps_per_round` steps lie between, else put
    together from steps and the rounds there were.
    """
    finished = [cluster for cluster in clusters if cluster.stopped_by is None]
    durations = rounds.durations_s
    if not durations or not finished:
        return math.fsum(cluster.samples_per_s for cluster in finished)
    samples = run.update_frequency * run.samples_per_microbatch * run.steps_per_round
    ends = rounds.ends_s[: finished[0].num_steps // run.steps_per_round]
    if len(ends) > 1:
        period_s = (ends[-1] - ends[0]) / (len(ends) - 1)
    else:
        slowest_s = max(cluster.step_time_s for cluster in finished)
        period_s = run.steps_per_round * slowest_s + math.fsum(durations) / len(durations)
    return len(finished) * _share(samples, period_s)


def failure_result(failure: Failure, cluster: ClusterRun) -> FailureResult:
    """What came of a failure."""
    number, root = cluster.cluster_id, cluster.stages[0]
    end_s = max(stage.free_s for stage in cluster.stages)
    if not cluster.has_stopped and failure.at_s >= end_s:
        outcome = f"comes after cluster {number} has finished"
    elif cluster.has_stopped and failure.ends_cluster_at_s == cluster.stop_s:
        silent = ""
        if failure.duration_s is not None:
            silent = f", {LOST_AFTER_S:g} s of silence later"
        outcome = (
            f"cluster {number} ends at {cluster.stop_s:g} s{silent}, after step {root.num_steps}: "
            "there is no recovery from the loss of a node"
        )
    elif cluster.has_stopped and failure.at_s >= cluster.stop_s:
        outcome = f"comes after cluster {number} has ended"
    elif failure.duration_s is not None:
        outcome = f"cluster {number} waits for {node_name(failure.node_id)} and goes on"
    else:
        outcome = f"cluster {number} has ended before"
    return FailureResult(failure.node_id, failure.at_s, failure.duration_s, outcome)


def timeline(clusters: Iterable[ClusterRun], records: dict[LinkKey, Record]) -> Timeline:
    """What was recorded."""
    nodes = {
        stage.node_id: tuple(
            Interval(_WORKS[kind], number, begin_s, end_s)
            for kind, number, begin_s, end_s in stage.record or ()
        )
        for cluster in clusters
        for stage in cluster.stages
    }
    links = {
        key: tuple(Transmission(number, begin_s, end_s) for _, number, begin_s, end_s in record)
        for key, record in sorted(records.items())
    }
    return Timeline(nodes, links)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 and math.isfinite(whole) else 0.0
