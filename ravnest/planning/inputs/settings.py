"""What a user can choose about a plan, and the constants behind its predictions."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any

from ravnest.errors import ConfigError
from ravnest.stage.delays import DelayCompensation
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule
from ravnest.wire.compression import STRONGEST_UNASKED, float32_share, parse_compression

RUNTIME_FOOTPRINT_BYTES = 370_000_000
"""What a process holds beside its stage: interpreter, torch, gRPC and their threads (350 MB with
torch 2.13 for the CPU, an optimizer's imports included), and the chunks under way in its streams.

A constant and not a measurement of this process: the same inputs have to give the same plan.
"""

ACCELERATOR_BUILD_FOOTPRINT_BYTES = 750_000_000
"""The same with a torch that was built for accelerators, also where it computes on the CPU."""

ACCELERATOR_FOOTPRINT_BYTES = 600_000_000
"""What a process holds of an accelerator's memory beside its stage: the driver's context, kernels,
and workspaces of the libraries."""

DEFAULT_FLOPS = 5e10
"""Speed taken for a node when none of the nodes is measured: two cores of a small server."""

DEFAULT_LATENCY_S = 0.005
"""One-way delay taken for a link that is not measured: a wired connection inside a country."""

DEFAULT_UPDATE_FREQUENCY = 8
"""Microbatches per optimizer step when clusterize is not told."""

DEFAULT_SCHEDULE = Schedule.TWO_BW  # by the table of `benchmarks.convergence`
DEFAULT_STEPS_PER_ROUND = 100
"""Optimizer steps between averagings when clusterize is not told."""

FLOPS_PER_BYTE_WRITTEN = 60.0
"""Operations a processor could do in the time that both passes take per byte written forward.

Makes elementwise work count, which has next to no operations but moves as much memory. Of one
number for all networks, 60 leaves the least spread: the rates at which decoders, convolutional and
linear networks of several sizes trained, measured in this unit on one core in fp32, lay within a
factor of 1.6 of each other, with 10 within 2.1.
"""

ACCUMULATION_WORK_PER_BYTE = 35.0
"""Operations per byte of a trained parameter for adding its gradient to the sum, each backward."""

_STEP_WORK = (18.0, 48.0, 150.0)
"""Operations of an optimizer step per byte of a parameter, by number of states. Measured."""

BACKWARD_AND_FORWARD = 3.0
"""Operations of a training step per operation of its forward pass."""

_COMPRESSION_NAMES: dict[bool | str, str] = {False: "none", True: "fp16"}


@dataclass(frozen=True, slots=True)
class OptimizerCost:
    """What an optimizer keeps, and what it needs for a step, as it was asked or told.

    Attributes:
        name: qualified name, or how many states were said.
        state_bytes: bytes it keeps per byte of a parameter: 2 for Adam in its usual form.
        tensor_bytes: bytes it keeps per parameter tensor, of whatever size.
        step_bytes: temporaries of a step per byte of the largest parameter, where parameters are
            stepped one after another.
        joint_step_bytes: temporaries of a step per byte of all parameters, where they are stepped
            together.
        accelerator_step_bytes: the same on an accelerator, where torch steps them together unless
            told otherwise.
    """

    name: str
    state_bytes: float
    tensor_bytes: int = 0
    step_bytes: float = 0.0
    joint_step_bytes: float = 0.0
    accelerator_step_bytes: float = 0.0

    @property
    def step_work_per_byte(self) -> float:
        """Operations of a step per byte of a trained parameter, in the planner's unit of work.

        Measured, for fp32 on one core: SGD without, SGD with momentum, and AdamW.
        """
        states = min(self.state_bytes, float(len(_STEP_WORK) - 1))
        low = int(states)
        high = min(low + 1, len(_STEP_WORK) - 1)
        return _STEP_WORK[low] + (states - low) * (_STEP_WORK[high] - _STEP_WORK[low])

    @classmethod
    def of_states(cls, num_states: int) -> OptimizerCost:
        """An optimizer of which nothing is known but how many tensors it keeps per parameter."""
        temporary = float(min(num_states, 2))
        return cls(
            f"{num_states} states",
            float(num_states),
            tensor_bytes=4,
            step_bytes=temporary,
            accelerator_step_bytes=temporary,
        )


@dataclass(frozen=True, slots=True)
class PlanningSettings:
    """Choices that hold for the whole plan.

    Attributes:
        optimizer: what it keeps per parameter.
        num_clusters: how many clusters to form, or None for what promises the most samples per
            second. With a number every node that fits is used.
        recompute: stages with several microbatches in flight keep only their inputs.
        update_frequency: microbatches per optimizer step, None when it is not known: then as many
            as memory could ever have to hold are counted, and times are for `frequency`.
        steps_per_round: optimizer steps between averagings.
        compression: as `Node(compression=...)`, for people.
        activation_ratio: bytes on the wire per byte of an activation; 1 without compression, with
            "auto" the least that it may choose.
        gradient_ratio: the same of a gradient.
        runtime_bytes: what a process on a CPU holds beside its stage.
        compensation: what stages do about late gradients.
        kept_for_rounds: copies of what is trained, in the dtype of averaging, that nodes keep from
            one averaging round to the next beside the one that rounds work on.
        rounds_overlap: training goes on beside rounds, so that they keep what was sent.
        assumed: in words, what nobody said.
        is_default: nobody has said the schedule; then a step may have fewer microbatches than it
            needs to keep all stages busy, and the batch is not split.
        thorough: in a large pool, look long for the best plan and for a proof of how near it is.
        num_nodes: nodes there are, None where that is not known; no cluster has more stages.
        slack: microbatches that the stage asked about may start beyond the least, see
            `ravnest.stage.schedule.StagePosition`.
        slack_before: the same of the stage before it.
        short_steps: those that it starts where steps have few, likewise.
    """

    schedule: Schedule = Schedule.ONE_F_ONE_B
    optimizer: OptimizerCost = field(default_factory=lambda: OptimizerCost.of_states(2))
    num_clusters: int | None = None
    recompute: bool = False
    update_frequency: int | None = None
    steps_per_round: int = DEFAULT_STEPS_PER_ROUND
    compression: str = "none"
    activation_ratio: float = 1.0
    gradient_ratio: float = 1.0
    runtime_bytes: int = RUNTIME_FOOTPRINT_BYTES
    compensation: DelayCompensation = DelayCompensation.OFF
    kept_for_rounds: float = 0.0
    rounds_overlap: bool = False
    assumed: tuple[str, ...] = ()
    is_default: bool = False
    thorough: bool = False
    num_nodes: int | None = None
    slack: int = 0
    slack_before: int = 0
    short_steps: tuple[int, ...] = ()

    @property
    def frequency(self) -> int:
        """Microbatches per optimizer step that times are predicted for."""
        return self.update_frequency or DEFAULT_UPDATE_FREQUENCY

    @property
    def most_stages(self) -> int:
        """Stages of a cluster that the schedule allows: `2bw` has a microbatch per stage and step.

        Without a number from the user `Node` chooses one that is enough.
        """
        if self.is_default or self.update_frequency is None:
            return sys.maxsize
        if self.schedule is Schedule.TWO_BW:
            return max(self.update_frequency, 1)
        return sys.maxsize

    def in_flight(self, index: int, num_stages: int) -> int:
        """Microbatches that stage `index` holds at most."""
        return self._position(index, num_stages, self._enough(num_stages)).max_in_flight

    def waiting(self, index: int, num_stages: int) -> int:
        """Microbatches that the stage before has computed and `index` has not begun, at most.

        Or one that is on its way.
        """
        if not index:
            return 1
        before = replace(self, slack=self.slack_before).in_flight(index - 1, num_stages)
        return max(1, before - self.in_flight(index, num_stages))

    def in_flight_at_step(self, index: int, num_stages: int) -> int:
        """Microbatches that stage `index` holds during an optimizer step at most."""
        return self._position(index, num_stages, self._enough(num_stages)).in_flight_at_step

    def recomputes(self, index: int, num_stages: int) -> bool:
        """Whether a stage runs its forward passes twice; with one ahead it would save none."""
        position = self._position(index, num_stages, self._enough(num_stages))
        return self.recompute and position.max_ahead > 1

    def _position(self, index: int, num_stages: int, frequency: int) -> StagePosition:
        return StagePosition(
            self.schedule, index, num_stages, frequency, self.slack, self.short_steps
        )

    def _enough(self, num_stages: int) -> int:
        """Microbatches per step; where nobody said, so many that they limit nothing."""
        return self.update_frequency or num_stages + self.slack

    def kept(self, index: int, num_stages: int) -> int:
        """Microbatches of which stage `index` holds all that backward needs at most."""
        if not self.recomputes(index, num_stages):
            return self.in_flight(index, num_stages)
        return 1 + self.behind(index, num_stages)

    def behind(self, index: int, num_stages: int) -> int:
        """Microbatches whose inputs have gradients, and their weights not yet, at most."""
        return self._position(index, num_stages, self.update_frequency or num_stages).max_behind

    def compensates(self, index: int, num_stages: int) -> bool:
        """Whether a stage corrects the steps of its optimizer: only where gradients are late."""
        late = self._position(index, num_stages, self.update_frequency or 1).max_staleness
        return self.compensation.for_delay(late) is not None

    def averages(self, index: int, num_stages: int) -> int:
        """Tensors that a stage keeps per parameter for that, besides what its optimizer keeps."""
        found = self.compensation.for_delay(float(self.compensates(index, num_stages)))
        return int(found is not None and found.keeps_average)

    def stashed(self, index: int, num_stages: int) -> int:
        """Older weight versions that stage `index` holds at most."""
        frequency = self.update_frequency or 1
        return self._position(index, num_stages, frequency).max_staleness

    def lasting(self, index: int, num_stages: int) -> int:
        """Those of them that meet a whole set of gradients."""
        frequency = self.update_frequency or 1
        return self._position(index, num_stages, frequency).lasting_versions


def parse_settings(
    *,
    schedule: Any,
    optimizer_states: Any,
    num_clusters: Any,
    update_frequency: Any,
    reduce_factor: Any,
    compression: Any,
    recompute: Any,
    runtime_bytes: int,
    delay_compensation: Any = "auto",
) -> PlanningSettings:
    """The options of clusterize, checked; see there for what they mean.

    Raises:
        ConfigError: one of them is impossible; the message names it and what was expected.
    """
    _check_count("num_clusters", num_clusters)
    _check_count("update_frequency", update_frequency)
    _check_count("reduce_factor", reduce_factor)
    if not (_is_int(optimizer_states) and optimizer_states >= 0):
        raise ConfigError(
            f"optimizer_states is {optimizer_states!r}; expected a whole number from 0 on",
            hint="2 for Adam, 1 for SGD with momentum, 0 for plain SGD",
        )
    if not isinstance(recompute, bool):
        raise ConfigError(f"recompute is {recompute!r}; expected True or False")
    codecs = parse_compression(compression) or STRONGEST_UNASKED
    assumed = []
    if schedule is None:
        assumed.append(f"schedule: {DEFAULT_SCHEDULE}, the default")
    if update_frequency is None:
        assumed.append(
            f"update_frequency: {DEFAULT_UPDATE_FREQUENCY} microbatches per optimizer step"
        )
    if reduce_factor is None:
        reduce_factor = DEFAULT_STEPS_PER_ROUND
        assumed.append(f"reduce_factor: {reduce_factor} optimizer steps between averagings")
    return PlanningSettings(
        schedule=DEFAULT_SCHEDULE if schedule is None else Schedule.parse(schedule),
        is_default=schedule is None,
        optimizer=OptimizerCost.of_states(optimizer_states),
        num_clusters=num_clusters,
        recompute=recompute,
        update_frequency=update_frequency,
        steps_per_round=reduce_factor,
        compression=_COMPRESSION_NAMES.get(compression, str(compression)),
        activation_ratio=float32_share(codecs.activation),
        gradient_ratio=float32_share(codecs.gradient),
        runtime_bytes=runtime_bytes,
        compensation=DelayCompensation.parse(delay_compensation),
        assumed=tuple(assumed),
    )


def _check_count(name: str, value: Any) -> None:
    if value is not None and not (_is_int(value) and value > 0):
        raise ConfigError(f"{name} is {value!r}; expected a whole number from 1 on, or None")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
