"""What a plan promises: bytes of every node, seconds of every stage and link, and the whole.

Pure data, computed by planning, kept in plan.json, shown by the command line, and checked by
`simulate` and by real runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Predicted peak bytes of one node by what they are for; the parts add up to the peak.

    Attributes:
        parameters: values of parameters and buffers, replicas and constants included.
        gradients: of the trainable parameters.
        optimizer: what the optimizer keeps per parameter.
        stashed: older weight versions that microbatches in flight still need.
        averaging: the copy that a round works on.
        activations: of all microbatches in flight at this position, kept or recomputed.
        workspace: temporaries of the most demanding operator, backward or optimizer step.
        communication: messages being sent and received.
        runtime: interpreter, torch, threads; on an accelerator its context.
    """

    parameters: int
    gradients: int
    optimizer: int
    stashed: int
    averaging: int
    activations: int
    workspace: int
    communication: int
    runtime: int

    @property
    def total(self) -> int:
        """Predicted peak."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.stashed
            + self.averaging
            + self.activations
            + self.workspace
            + self.communication
            + self.runtime
        )


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """One node at work.

    Attributes:
        memory: its peak, in parts.
        forward_s: seconds of a forward pass of one microbatch.
        backward_s: seconds of its backward pass, recomputation included.
        update_s: seconds of an optimizer step.
        busy: share of the step time in which it computes.
        weight_s: the part of `backward_s` that is for gradients of weights, where the schedule
            computes them apart.
        slack: microbatches it may start beyond those that fill equal stages without delays, so
            that its links are filled as well.
        short_steps: microbatches it starts where steps have 1, 2, ... of them, too few for a
            microbatch at every stage.
    """

    node_id: int
    memory: MemoryBudget
    forward_s: float
    backward_s: float
    update_s: float
    busy: float
    weight_s: float = 0.0
    slack: int = 0
    short_steps: tuple[int, ...] = ()


class Traffic(StrEnum):
    """What a link carries, and what its bytes are counted per.

    ACTIVATIONS: from a stage to the next, per microbatch.
    GRADIENTS: from a stage to the one before, per microbatch.
    PARAMETERS: gradients and values of parameters that several stages use, per optimizer step.
    AVERAGING: to the next member of a ring, per round.
    """

    ACTIVATIONS = "activations"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    AVERAGING = "averaging"


@dataclass(frozen=True, slots=True)
class LinkPrediction:
    """One kind of traffic between two nodes.

    Attributes:
        num_bytes: bytes on the wire each time, see `Traffic`.
        seconds: how long sending them takes at the rate of the slower end, without latency.
        latency_s: one-way delay, both ends' together.
        load: share of the time in which the link of the slower end is busy with it.
    """

    source: int
    target: int
    traffic: Traffic
    num_bytes: int
    seconds: float
    latency_s: float
    load: float


@dataclass(frozen=True, slots=True)
class LinkCompression:
    """What `compression="auto"` does between two stages that follow each other, and why.

    Attributes:
        source: node of the earlier stage; activations go from it, gradients to it.
        target: node of the later stage.
        compression: a name as of `Node(compression=...)`, "none" for none.
        reason: in words, with the figures it was chosen by.
    """

    source: int
    target: int
    compression: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterPrediction:
    """One pipeline.

    Attributes:
        step_time_s: seconds per optimizer step of `update_frequency` microbatches, steady state.
        samples_per_s: while it trains, averaging not counted.
        bubble: share of the step time that its nodes wait, on average over the nodes.
        bottleneck: what the step time is made of most, for people: a node's computing or a link.
    """

    cluster_id: int
    step_time_s: float
    samples_per_s: float
    bubble: float
    bottleneck: str


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The settings of the run that the predictions are for.

    Attributes:
        schedule: as `Node(schedule=...)`.
        update_frequency: microbatches per optimizer step.
        samples_per_microbatch: first dimension of the example inputs.
        steps_per_round: optimizer steps between averagings.
        optimizer: qualified name of the optimizer class.
        recompute: activations are computed again in the backward pass instead of kept.
        compression: as `Node(compression=...)`, "none" for none.
    """

    schedule: str
    update_frequency: int
    samples_per_microbatch: int
    steps_per_round: int
    optimizer: str
    recompute: bool
    compression: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """The whole.

    Attributes:
        stages: one per used node, in order of cluster and index.
        links: in order of source, target and traffic.
        clusters: in order of id.
        averaging_s: seconds of one round, 0 with one cluster.
        samples_per_s: of all clusters together, averaging counted.
        upper_bound_samples_per_s: no plan for these nodes and this model has more, by the closed
            form that plans are searched with; to be held against `planned_samples_per_s`.
        is_optimal: whether the plan is proven to be the best there is by that closed form.
        assumed: what was not measured or said, in words: speeds, delays, settings.
        planned_samples_per_s: of all clusters together by the closed form; `samples_per_s`, which
            is by the exact schedule and the true rings, is near it.
        compressions: per link between stages, in order of cluster and stage; what
            `compression="auto"` chooses, whether or not the plan was made with it.
    """

    run: PlannedRun
    stages: tuple[StagePrediction, ...]
    links: tuple[LinkPrediction, ...]
    clusters: tuple[ClusterPrediction, ...]
    averaging_s: float
    samples_per_s: float
    upper_bound_samples_per_s: float
    is_optimal: bool
    assumed: tuple[str, ...]
    planned_samples_per_s: float = 0.0
    compressions: tuple[LinkCompression, ...] = ()
