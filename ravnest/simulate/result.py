"""What a simulated run gives. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ravnest.plan.prediction import Traffic


class Work(StrEnum):
    """What a node does with its time."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward of inputs"
    BACKWARD_WEIGHT = "backward of weights"
    UPDATE = "update"
    AVERAGING = "averaging"


@dataclass(frozen=True, slots=True)
class Interval:
    """One thing a node does, averaging rounds with all their waiting.

    Attributes:
        number: of the microbatch, the optimizer step or the round, counted from 0.
    """

    work: Work
    number: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Transmission:
    """The time in which a message occupies its sender's link; latency comes after it.

    Attributes:
        number: position among the messages of its kind between the two nodes, from 0.
    """

    number: int
    begin_s: float
    end_s: float


LinkKey = tuple[int, int, Traffic]
"""Source, target, and what is carried."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that happened, in order of time on each node and each kind of traffic."""

    nodes: Mapping[int, tuple[Interval, ...]]
    links: Mapping[LinkKey, tuple[Transmission, ...]]


@dataclass(frozen=True, slots=True)
class NodeResult:
    """One node; shares are of the measured steps, averaging not counted.

    Attributes:
        utilisation: share of the time in which it computes.
        uplink: share of the time in which its link is busy sending.
        num_steps: optimizer steps it made in the whole run.
        staleness: microbatches of the whole run by the number of optimizer steps between the
            weights of their forward pass and the weights they updated: position 0 is none.
    """

    node_id: int
    cluster_id: int
    stage: int
    utilisation: float
    uplink: float
    num_steps: int
    staleness: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinkResult:
    """One kind of traffic between two nodes.

    Attributes:
        num_messages: in the whole run; averaging counts one per round and ring.
        num_bytes: of all of them.
        load: share of the measured steps in which the sender's link is busy with it; for averaging
            share of the whole run.
    """

    source: int
    target: int
    traffic: Traffic
    num_messages: int
    num_bytes: int
    load: float


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """One pipeline.

    Attributes:
        num_steps: optimizer steps its root made.
        num_samples: that all its stages trained on and applied.
        step_time_s: seconds per optimizer step after the warm-up, averaging not counted; infinite
            when it made no step.
        samples_per_s: the same, in samples.
        end_s: when it had finished, or stopped.
        stopped_by: the node whose failure stopped it, None when it ran to the end.
    """

    cluster_id: int
    num_steps: int
    num_samples: int
    step_time_s: float
    samples_per_s: float
    end_s: float
    stopped_by: int | None


@dataclass(frozen=True, slots=True)
class FailureResult:
    """What came of a failure, in words."""

    node_id: int
    at_s: float
    duration_s: float | None
    outcome: str


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A run.

    Attributes:
        seed: as set.
        num_steps: optimizer steps every cluster was to make.
        duration_s: from the start to when the last cluster had finished or stopped.
        samples_per_s: of all clusters that ran to the end, after the warm-up, averaging counted: as
            in a long run that averages every `steps_per_round` steps.
        averaging_s: mean time of a round, from when its last member came; 0 without rounds.
        num_rounds: averaging rounds that all members completed.
        staleness: as in `NodeResult`, all nodes together.
        clusters: in order of id.
        nodes: in order of cluster and stage.
        links: in order of source, target and traffic.
        timeline: None unless asked for.
    """

    seed: int
    num_steps: int
    duration_s: float
    samples_per_s: float
    averaging_s: float
    num_rounds: int
    staleness: tuple[int, ...]
    clusters: tuple[ClusterResult, ...]
    nodes: tuple[NodeResult, ...]
    links: tuple[LinkResult, ...]
    failures: tuple[FailureResult, ...]
    timeline: Timeline | None = None
