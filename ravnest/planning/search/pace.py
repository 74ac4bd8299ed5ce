"""The closed form that plans are searched with: step time = fill + period, stage by stage.

With C_k the seconds that stage k of S computes per microbatch, N_k those that its node's link is
busy, sending or receiving, whichever is more, L_k the time that a microbatch takes from its arrival
at stage k to the leaf and back, links included, and m microbatches per step:

    B_k = max(C_k, N_k)                               nothing of a stage is faster
    period = max over k of max(B_k, L_k / (S - k))    stage k has S - k microbatches in flight
    with a flush:    step = L_0 + (m - 1) period + update    the first one fills, others follow
    async and 2bw:   step = m period + update

Update, and averaging spread over the steps between two rounds, are charged to the stage whose
period they lengthen: step = L_0 + max over k of E_k, E_k = (m - 1) max(B_k, L_k / (S - k)) + U_k.
Against the exact schedule (`timing.steady`) this is within a few percent, but for `zb-h1`,
which is taken for `1f1b` here and is faster. What makes it worth
having: it is built up from the leaf by two numbers per suffix, L and the largest E so far, and less
of either is never worse, so a dynamic programme over suffixes finds the best plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import (
    BACKWARD_AND_FORWARD,
    DEFAULT_FLOPS,
    DEFAULT_LATENCY_S,
    PlanningSettings,
)
from ravnest.planning.inputs.table import Bools, Floats, Ints
from ravnest.stage.schedule import Schedule

_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class Traits:
    """What of nodes matters to a plan, one entry per node (or class of nodes).

    Attributes:
        flops: operations per second.
        rate: bytes per second of its link.
        latency_s: one-way delay of its link.
        memory: bytes it offers.
        accelerated: these are an accelerator's.
    """

    flops: Floats
    rate: Floats
    latency_s: Floats
    memory: Floats
    accelerated: Bools

    @classmethod
    def of(cls, nodes: Sequence[NodeSpec]) -> Traits:
        """The traits of nodes, with what is assumed where nothing was measured."""
        return cls(
            np.array([node.flops or DEFAULT_FLOPS for node in nodes], dtype=np.float64),
            np.array([node.bandwidth_bps / _BITS_PER_BYTE for node in nodes], dtype=np.float64),
            np.array([latency_of(node) for node in nodes], dtype=np.float64),
            np.array([float(node.memory_bytes) for node in nodes], dtype=np.float64),
            np.array([is_accelerated(node) for node in nodes], dtype=np.bool_),
        )

    def __len__(self) -> int:
        return len(self.flops)

    def take(self, index: Ints) -> Traits:
        """The traits at these indices, in any shape."""
        return Traits(
            self.flops[index],
            self.rate[index],
            self.latency_s[index],
            self.memory[index],
            self.accelerated[index],
        )


class Pace:
    """Seconds of stages and links between boundaries of a table, vectorised over nodes.

    Args:
        memory: has the table and says what fits.
        num_clusters: clusters that average with each other; 1 averages nothing.
    """

    def __init__(self, memory: MemoryModel, num_clusters: int) -> None:
        table, settings = memory.table, memory.settings
        self.memory = memory
        self.num_clusters = num_clusters
        self.size = table.last + 1
        self.is_flushed = settings.schedule.is_flushed
        self.frequency = settings.frequency
        self.periods = self.frequency - 1 if self.is_flushed else self.frequency
        # Ends of the graph send nothing: there the table has the inputs, which are at hand.
        inner = (np.arange(self.size) > 0) & (np.arange(self.size) < table.last)
        activations = (inner * table.forward_bytes).astype(np.float64)
        gradients = (inner * table.backward_bytes).astype(np.float64)
        self.activation_bytes: Floats = activations * settings.activation_ratio
        self.gradient_bytes: Floats = gradients * settings.gradient_ratio
        self.passing_bytes: Floats
        self._set_passing_bytes()
        start, end = np.arange(self.size)[:, None], np.arange(self.size)[None, :]
        self.work: Floats = table.work[end] - table.work[start]
        self.update_flops: Floats
        self.sent_per_step: Floats
        self._set_per_step(
            table.trained_bytes[end] - table.trained_bytes[start],
            table.fixed_bytes[end] - table.fixed_bytes[start],
        )
        if table.shared:
            self.sent_per_step = self.sent_per_step + memory.exchanged_bytes(start, end)
        self.is_stage: Bools = table.num_trained[end] > table.num_trained[start]
        self._needed: dict[tuple[int, bool], Floats] = {}

    def _set_passing_bytes(self) -> None:
        """What passes the link of a stage's node per microbatch, the busier way: [start, end]."""
        sent = self.activation_bytes + self.gradient_bytes[:, None]
        received = self.activation_bytes[:, None] + self.gradient_bytes
        self.passing_bytes = np.maximum(sent, received)

    def _set_per_step(self, trained: Ints, fixed: Ints) -> None:
        """What stages [start, end] compute for an optimizer step, and send for averaging."""
        settings, number = self.memory.settings, self.num_clusters
        self.update_flops = settings.optimizer.step_work_per_byte * trained.astype(np.float64)
        share = 2.0 * (number - 1) / number / settings.steps_per_round
        self.sent_per_step = share * (trained + fixed).astype(np.float64)

    @property
    def most_stages(self) -> int:
        """Stages that a cluster has at most."""
        return min(self.size - 1, self.memory.settings.most_stages)

    def needed(self, in_flight: int, *, accelerated: bool = False) -> Floats:
        """Peak bytes [start, end] of a stage that is `in_flight` from its leaf, inclusive.

        Infinite where the stage trains nothing. A stage that starts with the graph is the root, so
        the length of its cluster is known; of the others the part of the cluster before them is
        not: where it makes a difference, the longest cluster there can be is assumed.
        """
        key = in_flight, accelerated
        if key not in self._needed:
            memory = replace(self.memory, on_accelerator=accelerated)
            needed = self._stage_bytes(memory, in_flight)
            if in_flight > self.memory.settings.most_stages:
                needed[:] = np.inf
            if in_flight > 1:
                needed[:, -1] = np.inf  # only the leaf ends with the graph
            else:
                needed[:, :-1] = np.inf
            self._needed[key] = np.where(self.is_stage, needed, np.inf)
        return self._needed[key]

    def _stage_bytes(self, memory: MemoryModel, in_flight: int) -> Floats:
        start, end = np.arange(self.size)[:, None], np.arange(self.size)[None, :]
        longest = self._longest(in_flight)
        needed = memory.stage_bytes(start, end, longest - in_flight, longest).astype(np.float64)
        needed[0] = memory.stage_bytes(start[:1], end, 0, in_flight)[0]
        return needed

    def _longest(self, in_flight: int) -> int:
        """Stages of the cluster that a stage which is not the root needs the most memory in.

        It makes a difference only where every stage holds as many microbatches as the root.
        """
        settings = self.memory.settings
        if settings.schedule is not Schedule.ZB_H1:
            return in_flight + 1
        return max(in_flight + 1, min(self.most_stages, settings.num_nodes or in_flight + 1))

    def link_seconds(self, one: Traits, other: Traits) -> Floats:
        """Both ways per microbatch: nodes that broadcast, by boundary in the last axis."""
        rate = np.minimum(one.rate, other.rate)[..., None]
        num_bytes = self.activation_bytes + self.gradient_bytes
        delay = 2.0 * (one.latency_s + other.latency_s)[..., None]
        seconds: Floats = num_bytes / rate + delay
        return seconds

    def factor(self, in_flight: int) -> float:
        """Operations of a microbatch so far from the leaf over those of one pass each way."""
        return work_factor(self.memory.settings, in_flight)

    def fits(self, traits: Traits, in_flight: int) -> Bools:
        """Which stages fit: [node, start, end]."""
        return self._fitting(traits, in_flight, (slice(None), slice(None)))

    def _fitting(self, traits: Traits, in_flight: int, part: tuple[int | slice, slice]) -> Bools:
        """Which of some stages [start, end] fit, by node in the first axis."""
        plain = self.needed(in_flight)[part]
        limit = traits.memory.reshape(-1, *([1] * plain.ndim))
        found: Bools = plain <= limit
        if traits.accelerated.any():
            other = self.needed(in_flight, accelerated=True)[part]
            is_other = traits.accelerated.reshape(limit.shape)
            found = np.where(is_other, other <= limit, found)
        return found

    def busy(self, computing: Floats, traits: Traits, start: Ints | int, end: Ints) -> Floats:
        """B_k of stages: the more of computing and of what passes the node's link.

        Args:
            computing: C_k of stages in the first axis on nodes in the second.
            traits: of the nodes.
            start, end: boundaries of the stages.
        """
        passing = self.passing_bytes[start, end][:, None] / traits.rate
        longer: Floats = np.maximum(computing, passing)
        return longer

    def stage(self, traits: Traits, in_flight: int, start: int) -> tuple[Floats, Floats, Floats]:
        """Stages from one boundary to every later one, by node in the first axis.

        Returns:
            C_k and B_k; seconds per step that an optimizer step, averaging and parameters shared
            between stages take, infinite where the stage does not fit.
        """
        after = slice(start + 1, self.size)
        computing = self.factor(in_flight) * self.work[start, after] / traits.flops[:, None]
        others = self.update_flops[start, after] / traits.flops[:, None]
        others = others + self.sent_per_step[start, after] / traits.rate[:, None]
        fits = self._fitting(traits, in_flight, (start, after))
        busy = np.maximum(computing, self.passing_bytes[start, after] / traits.rate[:, None])
        return computing, busy, np.where(fits, others, np.inf)

    def prepend(
        self, loop: Floats, excess: Floats, traits: Traits, in_flight: int, start: int
    ) -> tuple[Floats, Floats]:
        """Puts a stage before suffixes.

        Args:
            loop, excess: L and the largest E of suffixes [row, label, boundary], link included.
            traits: of the new stage's node, per row.
            start: boundary that the new stage starts at.

        Returns:
            Both for the longer suffixes [row, label, boundary the suffix started at, from
            start + 1].
        """
        computing, busy, others = self.stage(traits, in_flight, start)
        longer = loop[:, :, start + 1 :] + computing[:, None]
        own = others[:, None]
        if self.periods:  # for none of them an infinite loop would be no number
            own = own + self.periods * np.maximum(busy[:, None], longer / in_flight)
        return longer, np.maximum(excess[:, :, start + 1 :], own)

    def step_time(self, loop: Floats, excess: Floats) -> Floats:
        """Seconds of an optimizer step from L and E of a whole cluster."""
        return loop + excess if self.is_flushed else excess

    def microbatch_rate(self, step_s: Floats) -> Floats:
        """Microbatches per second; 0 where the step time is infinite."""
        rate: Floats = self.frequency / np.maximum(step_s, 1e-9)
        return rate


def work_factor(settings: PlanningSettings, in_flight: int) -> float:
    """Operations of a microbatch over those of one forward and one backward pass."""
    return 1.0 + settings.recomputes(0, in_flight) / BACKWARD_AND_FORWARD


def is_accelerated(node: NodeSpec) -> bool:
    """Whether a node's memory is that of an accelerator."""
    return node.device is not None and not node.device.startswith("cpu")


def latency_of(node: NodeSpec) -> float:
    """One-way delay of a node's link in seconds, or what is assumed."""
    return DEFAULT_LATENCY_S if node.latency_s is None else node.latency_s


def rate_of(node: NodeSpec) -> float:
    """Bytes per second of a node's link, each way."""
    return node.bandwidth_bps / _BITS_PER_BYTE


def rate_between(one: NodeSpec, other: NodeSpec) -> float:
    """Bytes per second between two nodes: as fast as the slower one."""
    return min(rate_of(one), rate_of(other))
