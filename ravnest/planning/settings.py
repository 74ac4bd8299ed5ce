"""What a user can choose about a plan, and the constants behind its predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ravnest.errors import ConfigError
from ravnest.stage.schedule import Schedule
from ravnest.wire.compression import float32_share, parse_compression

RUNTIME_FOOTPRINT_BYTES = 350_000_000
"""What a process holds before it has a stage: interpreter, torch, gRPC and their threads."""

DEFAULT_FLOPS = 5e10
"""Speed taken for a node when none of the nodes is measured: two cores of a small server."""

DEFAULT_LATENCY_S = 0.005
"""One-way delay taken for a link that is not measured: a wired connection inside a country."""

DEFAULT_UPDATE_FREQUENCY = 8
"""Microbatches per optimizer step when clusterize is not told."""

DEFAULT_STEPS_PER_ROUND = 100
"""Optimizer steps between averagings when clusterize is not told."""

FLOPS_PER_BYTE_WRITTEN = 10.0
"""Machine balance: operations a processor could do while it moves one byte to memory and back.

Makes elementwise work count, which has next to no operations but moves as much memory.
"""

BACKWARD_AND_FORWARD = 3.0
"""Operations of a training step per operation of its forward pass."""

_COMPRESSION_NAMES: dict[bool | str, str] = {False: "none", True: "fp16"}


@dataclass(frozen=True, slots=True)
class PlanningSettings:
    """Choices that hold for the whole plan.

    Attributes:
        optimizer_states: tensors of a parameter's size that the optimizer keeps: 2 for Adam, 1 for
            SGD with momentum, 0 for plain SGD.
        num_clusters: how many clusters to form, or None for what promises the most samples per
            second. With a number every node that fits is used.
        update_frequency: microbatches per optimizer step.
        steps_per_round: optimizer steps between averagings.
        compression: as `Node(compression=...)`, for people.
        activation_ratio: bytes on the wire per byte of an activation; 1 without compression.
        gradient_ratio: the same of a gradient.
        recompute: stages with several microbatches in flight compute activations again in the
            backward pass instead of keeping them.
        assumed: in words, what nobody said.
    """

    schedule: Schedule = Schedule.ONE_F_ONE_B
    optimizer_states: int = 2
    num_clusters: int | None = None
    update_frequency: int = DEFAULT_UPDATE_FREQUENCY
    steps_per_round: int = DEFAULT_STEPS_PER_ROUND
    compression: str = "none"
    activation_ratio: float = 1.0
    gradient_ratio: float = 1.0
    recompute: bool = False
    assumed: tuple[str, ...] = ()

    def recomputes(self, in_flight: int) -> bool:
        """Whether a stage so far from its leaf, itself included, runs its forward passes twice."""
        return self.recompute and min(in_flight, self.update_frequency) > 1


def parse_settings(
    *,
    schedule: Any,
    optimizer_states: Any,
    num_clusters: Any,
    update_frequency: Any,
    reduce_factor: Any,
    compression: Any,
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
    codecs = parse_compression(compression)
    assumed = []
    if update_frequency is None:
        update_frequency = DEFAULT_UPDATE_FREQUENCY
        assumed.append(f"update_frequency: {update_frequency} microbatches per optimizer step")
    if reduce_factor is None:
        reduce_factor = DEFAULT_STEPS_PER_ROUND
        assumed.append(f"reduce_factor: {reduce_factor} optimizer steps between averagings")
    return PlanningSettings(
        schedule=Schedule.parse(schedule),
        optimizer_states=optimizer_states,
        num_clusters=num_clusters,
        update_frequency=update_frequency,
        steps_per_round=reduce_factor,
        compression=_COMPRESSION_NAMES.get(compression, str(compression)),
        activation_ratio=float32_share(codecs.activation),
        gradient_ratio=float32_share(codecs.gradient),
        assumed=tuple(assumed),
    )


def _check_count(name: str, value: Any) -> None:
    if value is not None and not (_is_int(value) and value > 0):
        raise ConfigError(f"{name} is {value!r}; expected a whole number from 1 on, or None")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
