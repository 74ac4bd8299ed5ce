"""What splitting yields and stage files hold: per stage one graph per mode, and its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from ravnest.capture.signature import InputSignature
from ravnest.capture.state import StoredTensor
from ravnest.capture.values import ValueSpec
from ravnest.plan.structure import Structure


@dataclass(frozen=True, slots=True)
class StageGraph:
    """One stage in one mode.

    Attributes:
        graph: placeholders' targets are wire names, get_attr targets stored names, the output is
            the tuple of values in the order of `outputs`.
        inputs: what comes in, in the order of the placeholders.
        outputs: what goes out, in order.
        output_structure: on the leaf, how the model nests its outputs.
    """

    graph: fx.Graph
    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    output_structure: Structure | None


@dataclass(frozen=True, slots=True)
class StageGraphs:
    """One stage in both modes, with its state.

    Attributes:
        parameters: owned here, by original name, in the model's order.
        buffers: persistent buffers owned here, likewise.
        replicas: trainable parameters used here and owned by an earlier stage, in the model's
            order.
        replica_owners: index of the owning stage per replica.
        constants: non-persistent buffers, lifted constants, and copies of frozen parameters and
            of buffers that are only read and owned by another stage.
        signature: on the root, what a call must look like.
    """

    index: int
    num_stages: int
    parameters: Mapping[str, StoredTensor]
    buffers: Mapping[str, StoredTensor]
    replicas: Mapping[str, StoredTensor]
    replica_owners: Mapping[str, int]
    constants: Mapping[str, StoredTensor]
    train: StageGraph
    eval: StageGraph
    signature: InputSignature | None
