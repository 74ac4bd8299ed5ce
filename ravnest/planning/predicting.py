"""What a plan promises, computed by the exact schedule and the true rings, as data of the plan."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ravnest.capture.costs import ParameterCost
from ravnest.plan.parts import NodeSpec, RingPlan
from ravnest.plan.prediction import (
    ClusterPrediction,
    LinkCompression,
    LinkPrediction,
    MemoryBudget,
    PlannedRun,
    Prediction,
    StagePrediction,
    Traffic,
)
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.clustering.clusters import Formation
from ravnest.planning.compressing import RawLink, choose_compressions, ratios_of
from ravnest.planning.inputs.settings import (
    BACKWARD_AND_FORWARD,
    DEFAULT_FLOPS,
    PlanningSettings,
)
from ravnest.planning.inputs.table import CostTable
from ravnest.planning.rings import owner_of
from ravnest.planning.round_times import AveragingRound
from ravnest.planning.search.ordering import Cluster
from ravnest.planning.search.pace import latency_of, rate_between, rate_of, work_factor
from ravnest.planning.timing.parts import ExchangeTime, MessageTime, PipelineTime, StageTime
from ravnest.planning.timing.short_steps import choose_short_steps
from ravnest.planning.timing.slack import choose_slacks
from ravnest.planning.timing.steady import SteadyState, bottleneck, steady_state
from ravnest.wire.compression import AUTO


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """What of the model a prediction depends on.

    Attributes:
        stored: parameters and persistent buffers, in the model's order.
        samples_per_microbatch: first dimension of the example.
    """

    table: CostTable
    stored: tuple[ParameterCost, ...]
    samples_per_microbatch: int


def predict(
    model: PlannedModel,
    formation: Formation,
    rings: Sequence[RingPlan],
    settings: PlanningSettings,
) -> Prediction:
    """Memory, times, links and rates of formed clusters."""
    memory = MemoryModel(model.table, settings, is_averaged=len(formation.clusters) > 1)
    pipelines = [_Pipeline(model, memory, cluster) for cluster in formation.clusters]
    averaging = AveragingRound(model.stored, formation, rings)
    per_step_s = averaging.seconds / settings.steps_per_round
    frequency, samples = settings.frequency, model.samples_per_microbatch
    rates = [frequency * samples / max(each.step_s + per_step_s, 1e-9) for each in pipelines]
    links = [link for each in pipelines for link in each.links(per_step_s)]
    slowest_s = max(each.step_s for each in pipelines) + per_step_s
    links += averaging.links(slowest_s * settings.steps_per_round)
    return Prediction(
        run=_run(settings, samples),
        stages=tuple(stage for each in pipelines for stage in each.stages()),
        links=tuple(sorted(links, key=lambda link: (link.source, link.target, link.traffic))),
        clusters=tuple(each.cluster(i, samples) for i, each in enumerate(pipelines)),
        averaging_s=averaging.seconds,
        samples_per_s=sum(rates),
        upper_bound_samples_per_s=formation.upper_bound * samples,
        is_optimal=formation.is_optimal,
        assumed=formation.assumed,
        planned_samples_per_s=formation.rate * samples,
        compressions=tuple(link for each in pipelines for link in each.compressions()),
    )


def microbatch_seconds(prediction: Prediction, node: NodeSpec) -> float:
    """What a node takes per microbatch: the slowest of computing, sending and receiving."""
    computing = next(
        stage.forward_s + stage.backward_s
        for stage in prediction.stages
        if stage.node_id == node.node_id
    )
    kinds = (Traffic.ACTIVATIONS, Traffic.GRADIENTS)
    links = [link for link in prediction.links if link.traffic in kinds]
    sent = sum(link.num_bytes for link in links if link.source == node.node_id)
    received = sum(link.num_bytes for link in links if link.target == node.node_id)
    return max(computing, max(sent, received) / rate_of(node))


def pipeline_time(
    memory: MemoryModel,
    cluster: Cluster,
    exchanged: Mapping[tuple[int, int], int],
    ratios: Sequence[tuple[float, float]] | None = None,
) -> PipelineTime:
    """The time model of a cluster.

    Args:
        exchanged: bytes per optimizer step between stages that use the same parameters.
        ratios: bytes on the wire per byte of an activation and of a gradient, for each link;
            None for those of the settings.
    """
    table, settings = memory.table, memory.settings
    cuts = np.searchsorted(table.positions, cluster.cutting.cuts).tolist()
    nodes, size = cluster.nodes, len(cluster.nodes)
    stages = []
    for k, (start, end) in enumerate(itertools.pairwise(cuts)):
        flops = nodes[k].flops or DEFAULT_FLOPS
        work = float(table.work[end] - table.work[start])
        total = work_factor(settings, size - k) * work / flops
        forward = work / BACKWARD_AND_FORWARD / flops
        trained = float(table.trained_bytes[end] - table.trained_bytes[start])
        update = settings.optimizer.step_work_per_byte * trained / flops
        # Gradients of weights take about as long as those of inputs, and as the forward pass.
        apart = forward if settings.schedule.splits_backward(k) else 0.0
        stages.append(StageTime(forward, total - forward, update, apart))
    same = (settings.activation_ratio, settings.gradient_ratio)
    links = [
        link.timed(*shares)
        for link, shares in zip(
            _raw_links(memory, cluster), ratios or [same] * (size - 1), strict=True
        )
    ]
    exchanges = tuple(
        ExchangeTime(
            owner,
            holder,
            MessageTime(num_bytes / rate_of(nodes[owner]), num_bytes / rate_of(nodes[holder])),
            MessageTime(num_bytes / rate_of(nodes[holder]), num_bytes / rate_of(nodes[owner])),
            latency_of(nodes[owner]) + latency_of(nodes[holder]),
        )
        for (owner, holder), num_bytes in exchanged.items()
        if owner < holder
    )
    return PipelineTime(
        settings.schedule, settings.frequency, tuple(stages), tuple(links), exchanges
    )


def _raw_links(memory: MemoryModel, cluster: Cluster) -> list[RawLink]:
    """The links of a cluster, without compression."""
    table, nodes = memory.table, cluster.nodes
    cuts = np.searchsorted(table.positions, cluster.cutting.cuts[1:-1]).tolist()
    return [
        RawLink(
            float(table.forward_bytes[cut]),
            float(table.backward_bytes[cut]),
            (rate_of(nodes[k]), rate_of(nodes[k + 1])),
            latency_of(nodes[k]) + latency_of(nodes[k + 1]),
        )
        for k, cut in enumerate(cuts)
    ]


def _run(settings: PlanningSettings, samples: int) -> PlannedRun:
    return PlannedRun(
        schedule=str(settings.schedule),
        update_frequency=settings.frequency,
        samples_per_microbatch=samples,
        steps_per_round=settings.steps_per_round,
        optimizer=settings.optimizer.name,
        recompute=settings.recompute,
        compression=settings.compression,
    )


class _Pipeline:
    """One cluster, timed."""

    def __init__(self, model: PlannedModel, memory: MemoryModel, cluster: Cluster) -> None:
        self._memory, self._cluster = memory, cluster
        self._exchanged = _exchanged_bytes(model.stored, cluster.cutting.cuts)
        self._raw = _raw_links(memory, cluster)
        self._time = pipeline_time(memory, cluster, self._exchanged)
        self._choices = choose_compressions(self._time, self._raw)
        settings = memory.settings
        same = (settings.activation_ratio, settings.gradient_ratio)
        self._ratios = [same] * len(self._raw)
        if settings.compression == AUTO:
            self._ratios = [ratios_of(choice.name) for choice in self._choices]
            self._time = pipeline_time(memory, cluster, self._exchanged, self._ratios)
        self._time = replace(self._time, short_steps=choose_short_steps(self._time))
        self._time = replace(self._time, slacks=choose_slacks(self._time, self._fits))
        self._state: SteadyState = steady_state(self._time)

    @property
    def step_s(self) -> float:
        return self._state.step_time_s

    def stages(self) -> Iterator[StagePrediction]:
        for k, (node, time) in enumerate(zip(self._cluster.nodes, self._time.stages, strict=True)):
            yield StagePrediction(
                node_id=node.node_id,
                memory=self._budget(k, self._time.slacks),
                forward_s=time.forward_s,
                backward_s=time.backward_s,
                update_s=time.update_s,
                busy=self._state.busy[k],
                weight_s=time.weight_s,
                slack=self._time.slacks[k],
                short_steps=self._time.short_steps[k],
            )

    def _budget(self, stage: int, slacks: Sequence[int]) -> MemoryBudget:
        nodes, positions = self._cluster.nodes, self._memory.table.positions
        start, end = np.searchsorted(positions, self._cluster.cutting.cuts[stage : stage + 2])
        memory = self._memory.on(nodes[stage])
        short = self._time.short_steps[stage]
        settings = replace(
            memory.settings,
            slack=slacks[stage],
            slack_before=slacks[stage - 1] if stage else 0,
            short_steps=short,
        )
        memory = replace(memory, settings=settings)
        return memory.budget(int(start), int(end), stage, len(nodes))

    def _fits(self, stage: int, slacks: Sequence[int]) -> bool:
        return self._budget(stage, slacks).total <= self._cluster.nodes[stage].memory_bytes

    def links(self, averaging_s: float) -> Iterator[LinkPrediction]:
        """Its links; loads are shares of a step with its part of averaging."""
        nodes, whole_s = self._cluster.nodes, max(self.step_s + averaging_s, 1e-9)
        settings = self._memory.settings
        for k, (link, raw) in enumerate(zip(self._time.links, self._raw, strict=True)):
            ahead, back = nodes[k].node_id, nodes[k + 1].node_id
            activations = round(raw.activation_bytes * self._ratios[k][0])
            gradients = round(raw.gradient_bytes * self._ratios[k][1])
            for source, target, traffic, num_bytes, seconds in (
                (ahead, back, Traffic.ACTIVATIONS, activations, link.activation.seconds),
                (back, ahead, Traffic.GRADIENTS, gradients, link.gradient.seconds),
            ):
                load = settings.frequency * seconds / whole_s
                yield LinkPrediction(
                    source, target, traffic, num_bytes, seconds, link.latency_s, load
                )
        for (k, other), num_bytes in self._exchanged.items():
            seconds = num_bytes / rate_between(nodes[k], nodes[other])
            yield LinkPrediction(
                source=nodes[k].node_id,
                target=nodes[other].node_id,
                traffic=Traffic.PARAMETERS,
                num_bytes=num_bytes,
                seconds=seconds,
                latency_s=latency_of(nodes[k]) + latency_of(nodes[other]),
                load=seconds / whole_s,
            )

    def compressions(self) -> Iterator[LinkCompression]:
        """What `compression="auto"` chooses."""
        pairs = itertools.pairwise(self._cluster.nodes)
        for (node, following), choice in zip(pairs, self._choices, strict=True):
            yield LinkCompression(node.node_id, following.node_id, choice.name, choice.reason)

    def cluster(self, cluster_id: int, samples: int) -> ClusterPrediction:
        frequency = self._memory.settings.frequency
        return ClusterPrediction(
            cluster_id=cluster_id,
            step_time_s=self.step_s,
            samples_per_s=frequency * samples / max(self.step_s, 1e-9),
            bubble=self._state.bubble,
            bottleneck=self._bottleneck(),
        )

    def _bottleneck(self) -> str:
        index, is_link = bottleneck(self._time)
        node = self._cluster.nodes[index]
        if not is_link:
            time = self._time.stages[index]
            seconds = time.forward_s + time.backward_s
            return f"node {node.node_id} computing: {seconds:.3g} s per microbatch"
        link, other = self._time.links[index], self._cluster.nodes[index + 1]
        seconds = link.activation.seconds + link.gradient.seconds
        slower = min(node, other, key=lambda each: (each.bandwidth_bps, each.node_id))
        return (
            f"link between node {node.node_id} and node {other.node_id}: {seconds:.3g} s per "
            f"microbatch at the {slower.bandwidth_bps / 1e6:g} Mbps of node {slower.node_id}, "
            f"and {link.latency_s:.3g} s of delay each way"
        )


def _exchanged_bytes(
    stored: Sequence[ParameterCost], cuts: Sequence[int]
) -> dict[tuple[int, int], int]:
    """Bytes per optimizer step between stages that use the same parameters: gradients, values."""
    sent: defaultdict[tuple[int, int], int] = defaultdict(int)
    for tensor in stored:
        if not tensor.trainable:
            continue
        owner = owner_of(tensor.position, cuts)
        for holder in sorted({owner_of(use, cuts) for use in tensor.uses} - {owner}):
            sent[holder, owner] += tensor.num_bytes
            sent[owner, holder] += tensor.num_bytes
    return dict(sorted(sent.items()))
