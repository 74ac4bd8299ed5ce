"""What each position of a train graph costs, as plain numbers for the planner. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cut:
    """A place where the graph may be cut.

    Attributes:
        position: the cut falls before the computing node at this position, 0 < position < N.
        forward_bytes: values that cross it on the way forward, for the example batch.
        backward_bytes: gradients that cross it on the way back.
    """

    position: int
    forward_bytes: int
    backward_bytes: int


@dataclass(frozen=True, slots=True)
class ParameterCost:
    """One stored tensor of the model and the position that first uses it.

    Attributes:
        name: original name in the state dict.
        num_bytes: bytes of its values.
        trainable: a parameter that gets a gradient (and optimizer state).
        is_parameter: False for a buffer.
        position: computing node that uses it first; unused ones go with their nearest module.
        uses: every position it is used at, ascending from `position`, when stages that it is used
            on may hold copies; empty when all uses are on one stage.
    """

    name: str
    num_bytes: int
    trainable: bool
    is_parameter: bool
    position: int
    uses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """Costs of the train graph, per computing node in order of execution.

    Attributes:
        forward_flops: floating-point operations of the forward pass, per position.
        saved_bytes: activation bytes that backward needs, per position (one microbatch).
        output_bytes: bytes written by the node, per position.
        stored: parameters and persistent buffers, in the model's order.
        cuts: every legal cut, in order of position.
        input_bytes: bytes of the example inputs.
    """

    forward_flops: tuple[float, ...]
    saved_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    stored: tuple[ParameterCost, ...]
    cuts: tuple[Cut, ...]
    input_bytes: int

    @property
    def num_positions(self) -> int:
        """Computing nodes in the graph."""
        return len(self.forward_flops)
