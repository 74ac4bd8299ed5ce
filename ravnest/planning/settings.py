"""What a user can choose about a plan, and the constants behind its predictions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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


class Schedule(StrEnum):
    """The order in which a stage works on microbatches, as far as memory depends on it."""

    ONE_F_ONE_B = "1f1b"
    ASYNC = "async"
    TWO_BW = "2bw"

    def stashed_versions(self, index: int, num_stages: int) -> int:
        """Weight versions a stage keeps besides the current one.

        `1f1b` flushes before it steps; `async` steps between the forward and the backward pass of
        every microbatch in flight behind the first; `2bw` keeps exactly one.
        """
        if self is Schedule.ASYNC:
            return num_stages - index - 1
        return 1 if self is Schedule.TWO_BW and num_stages > 1 else 0


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
