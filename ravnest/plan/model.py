"""The plan: which node holds which stage of which cluster, and who averages what. Pure data.

`Plan` is the whole (plan.json), `NodePlan` what one node needs (nodes/node_<id>.json). Knows no
torch, no network and no files; `plan.files` reads and writes both.
"""

from __future__ import annotations

from dataclasses import dataclass

from ravnest.plan.identity import Role
from ravnest.plan.parts import (
    FileDigest,
    NodeSpec,
    PeerSpec,
    Replica,
    RingMembership,
    RingPlan,
    SharedParameter,
    StagePlan,
    role_at,
)
from ravnest.plan.prediction import LinkCompression, Prediction
from ravnest.plan.text import describe

SCHEMA_VERSION = 8


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
        return describe(self.nodes, self.clusters, self.stages, self.rings, self.unused)


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
