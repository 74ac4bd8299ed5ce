"""What a user can choose about a plan, and the constants behind its predictions."""

from __future__ import annotations

from dataclasses import dataclass

from ravnest.stage.schedule import Schedule

RUNTIME_FOOTPRINT_BYTES = 350_000_000
"""What a process holds before it has a stage: interpreter, torch, gRPC and their threads."""

DEFAULT_FLOPS = 5e10
"""Speed taken for a node when none of the nodes is measured: two cores of a small server."""

FLOPS_PER_BYTE_WRITTEN = 10.0
"""Machine balance: operations a processor could do while it moves one byte to memory and back.

Makes elementwise work count, which has next to no operations but moves as much memory.
"""

BACKWARD_AND_FORWARD = 3.0
"""Operations of a training step per operation of its forward pass."""


@dataclass(frozen=True, slots=True)
class PlanningSettings:
    """Choices that hold for the whole plan.

    Attributes:
        optimizer_states: tensors of a parameter's size that the optimizer keeps: 2 for Adam, 1 for
            SGD with momentum, 0 for plain SGD.
        num_clusters: how many clusters to form, or None for what promises the most samples per
            second. With a number every node that fits is used.
    """

    schedule: Schedule = Schedule.ONE_F_ONE_B
    optimizer_states: int = 2
    num_clusters: int | None = None
