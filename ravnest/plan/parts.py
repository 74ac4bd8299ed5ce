"""What plans are made of: nodes, stages, rings, files; `model.py` has the wholes. Pure data."""

from __future__ import annotations

from dataclasses import dataclass

from ravnest.plan.identity import Role

_MAX_DIRECT_MEMBERS = 8
"""More would need too many connections of each member."""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A provider as configured.

    Attributes:
        address: `host:port` that others reach it at.
        bind: `host:port` it listens on.
        memory_bytes: RAM or VRAM it offers.
        bandwidth_bps: bits per second of its link.
        flops: floating-point operations per second, or None when not measured.
        latency_s: one-way delay of its link, or None when not measured.
        device: torch device name it computes on, or None when the script decides.
    """

    node_id: int
    address: str
    bind: str
    memory_bytes: int
    bandwidth_bps: float
    flops: float | None = None
    latency_s: float | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file of the plan: path relative to the plan's folder with forward slashes, and contents."""

    path: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Replica:
    """A trainable parameter that a stage uses and an earlier stage of its cluster owns.

    Attributes:
        name: original name.
        owner: node that steps it and sends its values.
    """

    name: str
    owner: int


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """A parameter as its owner sees it, when later stages use it too.

    Attributes:
        name: original name.
        holders: nodes with a replica, in order of stage.
    """

    name: str
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of one cluster, held by one node.

    Attributes:
        index: position in the cluster, 0 is the root.
        cut: half-open range of positions in the train graph.
        parameters: original names owned here, in the model's order.
        buffers: original names of persistent buffers owned here, in the model's order.
        needed_bytes: predicted peak memory.
        step_time_s: predicted seconds per microbatch, the slower of computing and sending.
        files: graph and weights of the stage.
        replicas: parameters used here that earlier stages own, in the model's order.
    """

    node_id: int
    cluster_id: int
    index: int
    cut: tuple[int, int]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    needed_bytes: int
    step_time_s: float
    files: tuple[FileDigest, ...] = ()
    replicas: tuple[Replica, ...] = ()


@dataclass(frozen=True, slots=True)
class RingPlan:
    """The nodes that average the same tensors, one node per cluster, in order of cluster.

    Attributes:
        parameters: names averaged, in the model's order.
        buffers: names of persistent buffers averaged, in the model's order.
    """

    ring_id: int
    members: tuple[int, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]

    @property
    def first_tensor(self) -> str:
        """The name the ring is shown by: its first parameter, else its first buffer."""
        return (*self.parameters, *self.buffers)[0]


@dataclass(frozen=True, slots=True)
class RingMembership:
    """A node's place in one ring."""

    ring_id: int
    rank: int
    size: int
    members: tuple[int, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]

    @property
    def is_direct(self) -> bool:
        """Whether members say short things straight to all others, not around the ring."""
        return self.size <= _MAX_DIRECT_MEMBERS

    @property
    def partners(self) -> frozenset[int]:
        """Members that this one exchanges messages with: its neighbours, or all if direct."""
        shifts = range(1, self.size) if self.is_direct else (1, self.size - 1)
        return frozenset(self.members[(self.rank + shift) % self.size] for shift in shifts)


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """A node this node talks to, and where.

    Attributes:
        rate_bps: bits per second that the link between them can do: the slower end's.
    """

    node_id: int
    address: str
    rate_bps: float | None = None


def role_at(index: int, num_stages: int) -> Role:
    """Role of the stage at a position; a lone stage is root (and leaf)."""
    if index == 0:
        return Role.ROOT
    return Role.LEAF if index == num_stages - 1 else Role.STEM
