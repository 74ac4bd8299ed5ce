"""The plan: which node holds which stage of which cluster, and who averages what. Pure data.

`Plan` is the whole (plan.json), `NodePlan` what one node needs (nodes/node_<id>.json). Knows no
torch, no network and no files; `plan.files` reads and writes both.
"""

from __future__ import annotations

from dataclasses import dataclass

from ravnest.plan.identity import Role
from ravnest.plan.prediction import LinkCompression, Prediction
from ravnest.plan.text import describe

SCHEMA_VERSION = 8


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
class Plan:
    """The whole plan.

    Attributes:
        model: qualified class name of the model, for people.
        nodes: every configured node, in order of id; a node in no cluster is unused.
        clusters: node ids of each cluster, from root to leaf.
        stages: one per used node, in order of cluster and index.
        rings: in order of id. With one cluster every ring has one member and nothing is averaged.
        aliases: tied names, from each further name to the name that is stored.
        state_names: every key of the original state dict, in order (aliases included).
        unused: reason per unused node id.
        prediction: what the plan promises.
        sha256: hash over everything else; "" while the plan is being made.
    """

    model: str
    nodes: tuple[NodeSpec, ...]
    clusters: tuple[tuple[int, ...], ...]
    stages: tuple[StagePlan, ...]
    rings: tuple[RingPlan, ...]
    aliases: dict[str, str]
    state_names: tuple[str, ...]
    unused: dict[int, str]
    prediction: Prediction | None = None
    schema: int = SCHEMA_VERSION
    sha256: str = ""

    def node(self, node_id: int) -> NodeSpec:
        """The configured node; KeyError when the plan has none of that id."""
        for node in self.nodes:
            if node.node_id == node_id:
                return node
        raise KeyError(node_id)

    def stage_of(self, node_id: int) -> StagePlan:
        """The stage a node holds; KeyError when it is unused."""
        for stage in self.stages:
            if stage.node_id == node_id:
                return stage
        raise KeyError(node_id)

    def role_of(self, node_id: int) -> Role:
        """Root, stem or leaf; a lone node is root."""
        stage = self.stage_of(node_id)
        return role_at(stage.index, len(self.clusters[stage.cluster_id]))

    def __str__(self) -> str:
        return describe(self)


_MAX_DIRECT_MEMBERS = 8
"""More would need too many connections of each member."""


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


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What one node needs to take part.

    Attributes:
        cluster_nodes: nodes of its cluster from root to leaf, itself included.
        stage: position in the cluster, 0 is the root.
        forward_target: next node of the cluster, None on the leaf.
        backward_target: node before it, None on the root.
        peers: every node it exchanges messages with: neighbours in the cluster, partners in its
            rings, root and leaf of a cluster each other (targets and results take the direct way),
            and owners and holders of replicas.
        dealing: batch i of a loader is cluster `dealing[i % len(dealing)]`'s.
        files: graph and weights of its stage.
        plan_sha256: hash of the plan; peers of another plan are refused.
        positions: where each parameter of its stage, in their order, stands among the names of
            the whole model's state.
        replicas: parameters used here that earlier stages own, in the model's order.
        shared: parameters owned here that later stages use too, in the model's order.
        needed_bytes: predicted peak memory.
        memory_bytes: what the node offers.
        schedule: that the plan was made for; the one of a run that says none.
        compressions: what `compression="auto"` does on the links to its neighbours.
        sha256: hash over everything else in this file.
    """

    node_id: int
    cluster_id: int
    num_clusters: int
    dealing: tuple[int, ...]
    cluster_nodes: tuple[int, ...]
    role: Role
    stage: int
    num_stages: int
    address: str
    bind: str
    forward_target: int | None
    backward_target: int | None
    rings: tuple[RingMembership, ...]
    peers: tuple[PeerSpec, ...]
    files: tuple[FileDigest, ...]
    plan_sha256: str
    device: str | None = None
    positions: tuple[int, ...] = ()
    replicas: tuple[Replica, ...] = ()
    shared: tuple[SharedParameter, ...] = ()
    needed_bytes: int = 0
    memory_bytes: int = 0
    slack: int = 0
    short_steps: tuple[int, ...] = ()
    schedule: str = "1f1b"
    compressions: tuple[LinkCompression, ...] = ()
    schema: int = SCHEMA_VERSION
    sha256: str = ""

    @property
    def is_root(self) -> bool:
        """Whether this node feeds the data in."""
        return self.stage == 0

    @property
    def is_leaf(self) -> bool:
        """Whether this node computes the loss."""
        return self.stage == self.num_stages - 1


def role_at(index: int, num_stages: int) -> Role:
    """Role of the stage at a position; a lone stage is root (and leaf)."""
    if index == 0:
        return Role.ROOT
    return Role.LEAF if index == num_stages - 1 else Role.STEM
