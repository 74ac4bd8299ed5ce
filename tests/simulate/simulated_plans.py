"""Plans with hand-made predictions, so that every time in a simulation is known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from ravnest.plan.model import Plan
from ravnest.plan.parts import NodeSpec, Replica, RingPlan, StagePlan
from ravnest.plan.prediction import (
    ClusterPrediction,
    LinkPrediction,
    MemoryBudget,
    PlannedRun,
    Prediction,
    StagePrediction,
    Traffic,
)
from ravnest.stage.schedule import Schedule


class Pipeline(NamedTuple):
    """One cluster, in the arguments of `make_plan`."""

    cluster: list[tuple[float, float, float]]
    schedule: Schedule
    update_frequency: int
    activation_bytes: int
    gradient_bytes: int
    latency_s: float

    def plan(self, **more: Any) -> Plan:
        """The plan of this one cluster."""
        settings = self._asdict()
        return make_plan([settings.pop("cluster")], **settings, **more)


def pipelines(max_stages: int) -> st.SearchStrategy[Pipeline]:
    """Any pipeline of so many stages at most."""
    seconds = st.floats(0.01, 1)
    stages = st.lists(
        st.tuples(seconds, seconds, st.floats(0, 0.3)), min_size=1, max_size=max_stages
    )
    num_bytes = st.integers(0, 400_000)
    return st.builds(
        Pipeline,
        stages,
        st.sampled_from(Schedule),
        st.integers(1, 8),
        num_bytes,
        num_bytes,
        st.floats(0, 0.5),
    )


def weight_seconds(schedule: str, stage: int, backward_s: float) -> float:
    """The part of a backward pass that is for gradients of weights, where they come apart."""
    return 0.4 * backward_s if Schedule(schedule).splits_backward(stage) else 0.0


NO_MEMORY = MemoryBudget(0, 0, 0, 0, 0, 0, 0, 0, 0)
BANDWIDTH_BPS = 8e6  # a byte takes a microsecond


def make_plan(
    clusters: Sequence[Sequence[tuple[float, float, float]]],
    *,
    schedule: str = "1f1b",
    update_frequency: int = 4,
    steps_per_round: int = 5,
    samples: int = 2,
    activation_bytes: int = 0,
    gradient_bytes: int = 0,
    averaging_bytes: int = 0,
    latency_s: float = 0.0,
    bandwidth_bps: Sequence[float] | None = None,
    ties: Sequence[tuple[int, int, int]] = (),
    tied_bytes: int = 0,
) -> Plan:
    """A plan of clusters of stages (forward_s, backward_s, update_s); nodes are numbered through.

    Args:
        latency_s: of every node's own link; a message has twice as much.
        bandwidth_bps: by node, default BANDWIDTH_BPS for all.
        ties: cluster, owner's stage and holder's stage of a parameter that both use.
    """
    ids: list[list[int]] = []
    for cluster in clusters:
        first = sum(map(len, ids))
        ids.append(list(range(first, first + len(cluster))))
    num_nodes = sum(map(len, ids))
    rates = bandwidth_bps or [BANDWIDTH_BPS] * num_nodes
    owner_of = {(c, holder): ids[c][owner] for c, owner, holder in ties}
    stages, predictions, links = [], [], []

    def link(source: int, target: int, traffic: Traffic, num_bytes: int) -> None:
        seconds = num_bytes * 8 / min(rates[source], rates[target])
        links.append(
            LinkPrediction(source, target, traffic, num_bytes, seconds, 2 * latency_s, 0.0)
        )

    for c, (cluster, nodes) in enumerate(zip(clusters, ids, strict=True)):
        for k, ((forward_s, backward_s, update_s), node) in enumerate(
            zip(cluster, nodes, strict=True)
        ):
            replicas = (Replica("tied", owner_of[c, k]),) if (c, k) in owner_of else ()
            cut, names = (k, k + 1), (f"weight_{k}",)
            stages.append(StagePlan(node, c, k, cut, names, (), 0, 0.0, (), replicas))
            predictions.append(
                StagePrediction(
                    node, NO_MEMORY, forward_s, backward_s, update_s, 0.0,
                    weight_seconds(schedule, k, backward_s),
                )
            )  # fmt: skip
        for one, other in itertools.pairwise(nodes):
            link(one, other, Traffic.ACTIVATIONS, activation_bytes)
            link(other, one, Traffic.GRADIENTS, gradient_bytes)
    for c, owner, holder in ties:
        link(ids[c][owner], ids[c][holder], Traffic.PARAMETERS, tied_bytes)
        link(ids[c][holder], ids[c][owner], Traffic.PARAMETERS, tied_bytes)
    rings = []
    for k in range(min(map(len, clusters))):
        members = tuple(nodes[k] for nodes in ids)
        rings.append(RingPlan(k, members, (f"weight_{k}",), ()))
        if len(clusters) > 1:
            for one, other in zip(members, (*members[1:], members[0]), strict=True):
                link(one, other, Traffic.AVERAGING, averaging_bytes)
    run = PlannedRun(
        schedule, update_frequency, samples, steps_per_round, "torch.optim.SGD", False, "none"
    )
    return Plan(
        model="Model",
        nodes=tuple(
            NodeSpec(i, f"10.0.0.{i}:1", f"10.0.0.{i}:1", 10**9, rates[i], 1e9, latency_s)
            for i in range(num_nodes)
        ),
        clusters=tuple(map(tuple, ids)),
        stages=tuple(stages),
        rings=tuple(rings),
        aliases={},
        state_names=(),
        unused={},
        prediction=Prediction(
            run=run,
            stages=tuple(predictions),
            links=tuple(links),
            clusters=tuple(ClusterPrediction(c, 1.0, 1.0, 0.0, "") for c in range(len(ids))),
            averaging_s=0.0,
            samples_per_s=1.0,
            upper_bound_samples_per_s=1.0,
            is_optimal=False,
            assumed=(),
        ),
    )
