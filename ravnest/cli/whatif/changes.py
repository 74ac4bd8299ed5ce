"""What can be changed for a what-if, as data. Knows no spelling and applies nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias


class NodeField(StrEnum):
    """A number of a node, spelled as in node_configs.json and in the units of it."""

    RAM = "ram"
    BANDWIDTH = "bandwidth"
    FLOPS = "flops"
    LATENCY = "latency"

    @property
    def unit(self) -> str:
        """What it is counted in."""
        return _UNITS[self]

    @property
    def attribute(self) -> str:
        """Its name in `NodeConfig`."""
        return _ATTRIBUTES[self]


_UNITS = {
    NodeField.RAM: "GB",
    NodeField.BANDWIDTH: "Mbps",
    NodeField.FLOPS: "GFLOP/s",
    NodeField.LATENCY: "ms",
}
_ATTRIBUTES = {
    NodeField.RAM: "ram_gb",
    NodeField.BANDWIDTH: "bandwidth_mbps",
    NodeField.FLOPS: "flops_gflops",
    NodeField.LATENCY: "latency_ms",
}


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """Another number for a node that is there."""

    node_id: int
    field: NodeField
    value: float

    def __str__(self) -> str:
        return f"node.{self.node_id}.{self.field}={self.value:g}"


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A further node; it gets the next free id.

    Attributes:
        values: RAM and bandwidth always, the others where given.
    """

    values: tuple[tuple[NodeField, float], ...]

    def __str__(self) -> str:
        return "+node " + ",".join(f"{field}={value:g}" for field, value in self.values)


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """Without a node that is there."""

    node_id: int

    def __str__(self) -> str:
        return f"-node.{self.node_id}"


@dataclass(frozen=True, slots=True)
class BatchChanged:
    """Another number of samples in the example.

    Attributes:
        amount: samples, or how many times as many as there are.
    """

    amount: float
    is_factor: bool

    def __str__(self) -> str:
        return f"batch={self.amount:g}{'x' if self.is_factor else ''}"


@dataclass(frozen=True, slots=True)
class OptionChanged:
    """Another value for an option of clusterize.

    Attributes:
        value: what clusterize is called with.
        text: as written.
    """

    name: str
    value: Any
    text: str

    def __str__(self) -> str:
        return f"{self.name}={self.text}"


Change: TypeAlias = NodeChanged | NodeAdded | NodeRemoved | BatchChanged | OptionChanged
