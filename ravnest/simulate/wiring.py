"""From a plan with its prediction to clusters and rings that can be run.

Takes what single things cost (a pass, a step, the bytes of a message) from the prediction, rates
and speeds from the nodes. What the prediction says of whole steps is not looked at: the
simulation is there to check it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from random import Random

from ravnest.errors import ConfigError, PlanFileError
from ravnest.plan.identity import node_name
from ravnest.plan.model import Plan
from ravnest.plan.parts import RingPlan
from ravnest.plan.prediction import LinkPrediction, Prediction, StagePrediction, Traffic
from ravnest.simulate.cluster import ClusterRun, StageRun
from ravnest.simulate.lanes import OutgoingLane, Record
from ravnest.simulate.outages import Outages, merged
from ravnest.simulate.result import LinkKey
from ravnest.simulate.rounds import RingLink, RingRun
from ravnest.simulate.script import (
    ACTIVATIONS_LANE,
    FIRST_TIED_LANE,
    GRADIENTS_LANE,
    ClusterShape,
    scripts_of,
)
from ravnest.simulate.settings import SimulationSettings
from ravnest.stage.schedule import Schedule

_BITS_PER_BYTE = 8


class Wiring:
    """Builds the parts of one run.

    Args:
        marked_steps: steps at whose end every stage sets a mark.

    Raises:
        PlanFileError: the plan has no prediction, or one that does not cover its nodes.
        ConfigError: the settings name a node that has no part in the plan.
    """

    def __init__(
        self,
        plan: Plan,
        settings: SimulationSettings,
        num_steps: int,
        marked_steps: tuple[int, ...],
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._num_steps = num_steps
        self._marked_steps = marked_steps
        self.prediction = prediction_of(plan)
        self._specs = {node.node_id: node for node in plan.nodes}
        self._costs: dict[int, StagePrediction] = {
            stage.node_id: stage for stage in self.prediction.stages
        }
        self._links: dict[LinkKey, LinkPrediction] = {
            (link.source, link.target, link.traffic): link for link in self.prediction.links
        }
        self._ties = _ties(plan)
        self.records: dict[LinkKey, Record] = {}
        used = [node_id for cluster in plan.clusters for node_id in cluster]
        if missing := [node_id for node_id in used if node_id not in self._costs]:
            raise PlanFileError(f"the plan predicts nothing of {_names(missing)}")
        failing = [failure.node_id for failure in settings.failures]
        if unknown := sorted({*settings.speeds, *failing} - set(used)):
            raise ConfigError(
                f"{_names(unknown)} has no part in the plan; its nodes are {_names(sorted(used))}"
            )

    def clusters(self) -> tuple[ClusterRun, ...]:
        """All clusters, at the beginning."""
        return tuple(self._cluster(number) for number in range(len(self._plan.clusters)))

    def rings(self, clusters: tuple[ClusterRun, ...]) -> tuple[RingRun, ...]:
        """All rings of more than one member."""
        stages = {stage.node_id: stage for cluster in clusters for stage in cluster.stages}
        rings = [ring for ring in self._plan.rings if len(ring.members) > 1]
        sharing = Counter(pair for ring in rings for pair in _pairs(ring))
        return tuple(
            RingRun(
                ring.ring_id,
                {cluster: stages[node_id] for cluster, node_id in enumerate(ring.members)},
                {
                    cluster: self._ring_link(*pair, sharing[pair])
                    for cluster, pair in enumerate(_pairs(ring))
                },
            )
            for ring in rings
        )

    def stopping_node(self, cluster_id: int) -> int | None:
        """The node whose failure ends a cluster first, if any does."""
        nodes = self._plan.clusters[cluster_id]
        ends = [
            (failure.ends_cluster_at_s, failure.node_id)
            for failure in self._settings.failures
            if failure.node_id in nodes
        ]
        first = min(ends, default=(math.inf, -1))
        return None if first[0] == math.inf else first[1]

    def seconds(self, node_id: int, num_bytes: float) -> float:
        """How long bytes occupy the link of a node."""
        return num_bytes * _BITS_PER_BYTE / self._specs[node_id].bandwidth_bps

    def _cluster(self, cluster_id: int) -> ClusterRun:
        run = self.prediction.run
        nodes = self._plan.clusters[cluster_id]
        averages = any(len(ring.members) > 1 for ring in self._plan.rings)
        shape = ClusterShape(
            schedule=Schedule.parse(run.schedule),
            num_stages=len(nodes),
            update_frequency=run.update_frequency,
            num_steps=self._num_steps,
            steps_per_round=run.steps_per_round if averages else None,
            ties=self._ties[cluster_id],
            slacks=tuple(self._costs[node_id].slack for node_id in nodes),
            short_steps=tuple(self._costs[node_id].short_steps for node_id in nodes),
        )
        num_lanes = FIRST_TIED_LANE + (len(nodes) if shape.ties else 0)
        scripts = scripts_of(shape)
        stages = []
        for index, node_id in enumerate(nodes):
            record: Record | None = [] if self._settings.timeline else None
            stage = StageRun(
                index,
                node_id,
                scripts[index],
                self._seconds(node_id),
                num_lanes,
                self._marked_steps,
                self._outages(node_id),
                record,
            )
            if self._settings.speed_variation:
                random = Random(f"{self._settings.seed}/speed/{node_id}")
                stage.vary(self._settings.speed_variation, random)
            stages.append(stage)
        self._connect(stages, shape)
        stop_s = min(
            (f.ends_cluster_at_s for f in self._settings.failures if f.node_id in nodes),
            default=math.inf,
        )
        return ClusterRun(cluster_id, stages, stop_s)

    def _seconds(self, node_id: int) -> tuple[float, ...]:
        """By kind of entry, see `script`."""
        cost, speed = self._costs[node_id], self._settings.speeds.get(node_id, 1.0)
        for_inputs_s = cost.backward_s - cost.weight_s
        seconds = (cost.forward_s, cost.backward_s, cost.update_s, 0.0, 0.0)
        return tuple(each / speed for each in (*seconds, for_inputs_s, cost.weight_s))

    def _outages(self, node_id: int) -> Outages:
        return merged(
            (failure.at_s, failure.at_s + failure.duration_s)
            for failure in self._settings.failures
            if failure.node_id == node_id and failure.duration_s is not None
        )

    def _connect(self, stages: list[StageRun], shape: ClusterShape) -> None:
        for stage, following in itertools.pairwise(stages):
            self._lane(stage, following, ACTIVATIONS_LANE, ACTIVATIONS_LANE, Traffic.ACTIVATIONS)
            self._lane(following, stage, GRADIENTS_LANE, GRADIENTS_LANE, Traffic.GRADIENTS)
        for pair in sorted(shape.ties):
            for one, other in (pair, pair[::-1]):
                lanes = FIRST_TIED_LANE + other, FIRST_TIED_LANE + one
                self._lane(stages[one], stages[other], *lanes, Traffic.PARAMETERS)

    def _lane(
        self, source: StageRun, target: StageRun, outgoing: int, incoming: int, traffic: Traffic
    ) -> None:
        link = self._links.get((source.node_id, target.node_id, traffic))
        num_bytes = 0 if link is None else link.num_bytes
        lane = OutgoingLane(
            target,
            target.incoming[incoming],
            traffic,
            num_bytes,
            self.seconds(source.node_id, num_bytes),
            self.seconds(target.node_id, num_bytes),
            self._latency(source.node_id, target.node_id, link),
            self._record((source.node_id, target.node_id, traffic)),
        )
        if self._settings.jitter_s:
            lane.jitter_s = self._settings.jitter_s
            name = f"{self._settings.seed}/jitter/{source.node_id}/{target.node_id}/{traffic}"
            lane.random = Random(name)
        source.outgoing[outgoing] = lane

    def _ring_link(self, source: int, target: int, num_sharing: int) -> RingLink:
        """Rings between the same two nodes share what the prediction says of both in one."""
        link = self._links.get((source, target, Traffic.AVERAGING))
        num_bytes = 0.0 if link is None else link.num_bytes / num_sharing
        return RingLink(
            source,
            target,
            num_bytes,
            max(self.seconds(node_id, num_bytes) for node_id in (source, target)),
            self._latency(source, target, link) + self._settings.jitter_s,
            self._record((source, target, Traffic.AVERAGING)),
        )

    def _latency(self, source: int, target: int, link: LinkPrediction | None) -> float:
        if link is not None:
            return link.latency_s
        return sum(self._specs[node_id].latency_s or 0.0 for node_id in (source, target))

    def _record(self, key: LinkKey) -> Record | None:
        return self.records.setdefault(key, []) if self._settings.timeline else None


def prediction_of(plan: Plan) -> Prediction:
    """What the plan predicts; PlanFileError when it predicts nothing."""
    if plan.prediction is None:
        raise PlanFileError(
            "the plan predicts no times, so there is nothing to simulate",
            hint="run clusterize again with this version of ravnest",
        )
    return plan.prediction


def _pairs(ring: RingPlan) -> list[tuple[int, int]]:
    """Each member and the next."""
    return list(zip(ring.members, (*ring.members[1:], ring.members[0]), strict=True))


def _ties(plan: Plan) -> list[frozenset[tuple[int, int]]]:
    """By cluster, pairs of stage indices: owner and holder of a shared parameter."""
    index_of = {stage.node_id: stage.index for stage in plan.stages}
    ties: list[set[tuple[int, int]]] = [set() for _ in plan.clusters]
    for stage in plan.stages:
        for replica in stage.replicas:
            ties[stage.cluster_id].add((index_of[replica.owner], stage.index))
    return [frozenset(pairs) for pairs in ties]


def _names(node_ids: list[int]) -> str:
    """At most ten of them, in words."""
    shown = ", ".join(node_name(node_id) for node_id in node_ids[:10])
    return shown if len(node_ids) <= 10 else f"{shown} and {len(node_ids) - 10} more"
