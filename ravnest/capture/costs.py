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
        unsaved_bytes: of the memory that lives across it and was made before it, what nothing
            before it saves for backward: the stage before keeps it all the same, as its output.
        received_bytes: what lives across it and is saved first between it and the next cut: there
            it is counted as saved, and the stage behind has it as its input already.
    """

    position: int
    forward_bytes: int
    backward_bytes: int
    unsaved_bytes: int = 0
    received_bytes: int = 0


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
        averaged_bytes: bytes of it in the dtype that it is averaged in; None: as many as its own.
    """

    name: str
    num_bytes: int
    trainable: bool
    is_parameter: bool
    position: int
    uses: tuple[int, ...] = ()
    averaged_bytes: int | None = None

    @property
    def shadow_bytes(self) -> int:
        """Bytes of its copy during an averaging round."""
        return self.num_bytes if self.averaged_bytes is None else self.averaged_bytes


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
        peak_bytes: per position the activation bytes that live at most while it runs, forward or
            backward, in the whole graph: what the positions up to it save, and its temporaries;
            the criterion's are the last one's. Empty: there are no temporaries.
        num_samples: of the example batch.
        criterion_bytes: what a criterion keeps for backward, beyond `saved_bytes`.
    """

    forward_flops: tuple[float, ...]
    saved_bytes: tuple[int, ...]
    output_bytes: tuple[int, ...]
    stored: tuple[ParameterCost, ...]
    cuts: tuple[Cut, ...]
    input_bytes: int
    peak_bytes: tuple[int, ...] = ()
    criterion_bytes: int = 0
    num_samples: int = 1

    @property
    def num_positions(self) -> int:
        """Computing nodes in the graph."""
        return len(self.forward_flops)
