"""What a user can choose about a plan, and the constants behind its predictions."""

from __future__ import annotations

from dataclasses import dataclass, field

from ravnest.stage.schedule import Schedule

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

FLOPS_PER_BYTE_WRITTEN = 10.0
"""Machine balance: operations a processor could do while it moves one byte to memory and back.

Makes elementwise work count, which has next to no operations but moves as much memory.
"""

BACKWARD_AND_FORWARD = 3.0
"""Operations of a training step per operation of its forward pass."""


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
            as memory could ever have to hold are counted.
        runtime_bytes: what a process on a CPU holds beside its stage.
        activation_ratio: bytes on the wire per byte of an activation; 1 without compression.
        gradient_ratio: the same of a gradient.
    """

    schedule: Schedule = Schedule.ONE_F_ONE_B
    optimizer: OptimizerCost = field(default_factory=lambda: OptimizerCost.of_states(2))
    num_clusters: int | None = None
    recompute: bool = False
    update_frequency: int | None = None
    runtime_bytes: int = RUNTIME_FOOTPRINT_BYTES
    activation_ratio: float = 1.0
    gradient_ratio: float = 1.0

    def in_flight(self, index: int, num_stages: int) -> int:
        """Microbatches that stage `index` holds at most."""
        frequency = self.update_frequency or num_stages
        return self.schedule.max_in_flight(index, num_stages, frequency)

    def recomputes(self, index: int, num_stages: int) -> bool:
        """Whether a stage runs its forward passes twice; with one in flight it would save none."""
        return self.recompute and self.in_flight(index, num_stages) > 1

    def stashed(self, index: int, num_stages: int) -> int:
        """Older weight versions that stage `index` holds at most."""
        return self.schedule.stashed_versions(index, num_stages, self.update_frequency or 1)

    def lasting(self, index: int, num_stages: int) -> int:
        """Those of them that meet a whole set of gradients."""
        return self.schedule.lasting_versions(index, num_stages, self.update_frequency or 1)
