"""Two clusters of three unequal stages over slow links, beside what the links allow and naive use.

A stage waits as long as its machine would compute, exchanges as many bytes as the GPT of
`benchmarks.workloads` and has a third of its values to average. There are two machines each of
`MACHINES_FLOPS`; the planner forms the clusters and orders them. Part of `benchmarks.wan`.

Both settings train with the same steps, those of the GPT. The naive one is `1f1b` in fp32, with an
average after every step. The other trains without a flush, compresses where the plan says that it
pays, and averages every `STEPS_PER_ROUND` steps: far more than are run, so its rate is that of
training, as measured, less what a round costs, as the naive runs measure it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.links import Access, Network
from benchmarks.prediction import check_link
from benchmarks.processes import run_processes
from benchmarks.waits import GPT_STAGE_FLOPS, GPT_STAGE_S
from benchmarks.wan_worker import NUM_CLUSTERS, WORKLOAD
from benchmarks.workloads import WORKLOADS
from ravnest import clusterize
from ravnest.plan.model import Plan
from ravnest.plan.prediction import Traffic

MACHINES_FLOPS = (200e9, 400e9, 600e9)
STAGES_S = tuple(GPT_STAGE_S * GPT_STAGE_FLOPS / each for each in MACHINES_FLOPS)
"""Seconds of both passes of a third of the GPT on a microbatch."""
UPDATE_FREQUENCY = 8
PACKET_BYTES = 9000
RATES_MBPS = (20.0, 80.0, 200.0)
ROUND_TRIPS_MS = (50.0, 100.0)
STEPS_PER_ROUND = 500
PORT = 8080
TIMEOUT_S = 600
WARM_UP_STEPS = 3
NUM_DRAINED = 2
"""Last steps without a flush that nothing follows."""

NAIVE = {"schedule": "1f1b", "update_frequency": UPDATE_FREQUENCY, "reduce_factor": 1}
OWN = {
    "schedule": "async",
    "update_frequency": UPDATE_FREQUENCY,
    "reduce_factor": STEPS_PER_ROUND,
    "compression": "auto",
}


@dataclass(frozen=True)
class Setting:
    """Links that all machines have alike.

    Attributes:
        round_trip_ms: between any two machines.
    """

    rate_mbps: float
    round_trip_ms: float

    @property
    def access(self) -> Access:
        """How each machine is connected."""
        return Access(self.rate_mbps * 1e6, self.round_trip_ms / 4e3)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.rate_mbps:g} Mbps, {self.round_trip_ms:g} ms"


def measure(setting: Setting, *, num_steps: int, num_naive: int) -> dict[str, Any]:
    """Rates of both ways to train over links of one kind, and what the links allow.

    Args:
        num_steps: of a cluster, on average; `num_naive` of the naive run.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder,
        Network([setting.access] * (NUM_CLUSTERS * len(STAGES_S)), PACKET_BYTES) as network,
    ):
        work = Path(folder)
        links = [check_link(network, 0)]
        plan = make_plan(network, work)
        own = run(plan, network, work, OWN, num_steps)
        naive = run(plan, network, work, NAIVE, num_naive)
    prediction = plan.prediction
    assert prediction is not None
    samples = prediction.run.samples_per_microbatch
    bound = sum(samples / each for each in bounds_s(plan))
    samples *= UPDATE_FREQUENCY
    trained, naive_rate = samples * own.steps_per_s, samples * naive.steps_per_s
    steps_s = STEPS_PER_ROUND * NUM_CLUSTERS / own.steps_per_s
    with_rounds = trained * steps_s / (steps_s + naive.round_s)
    return {
        "links": links,
        "clusters": plan.clusters,
        "compressions": [
            [each.source, each.target, each.compression, each.reason]
            for each in prediction.compressions
        ],
        "bound_samples_per_s": bound,
        "predicted_samples_per_s": sum(each.samples_per_s for each in prediction.clusters),
        "samples_per_s": trained,
        "of_bound": trained / bound,
        "round_s": naive.round_s,
        "with_rounds_samples_per_s": with_rounds,
        "naive_samples_per_s": naive_rate,
        "over_naive": with_rounds / naive_rate,
    }


@dataclass(frozen=True)
class Ran:
    """What a run took.

    Attributes:
        steps_per_s: of all clusters together, rounds included.
        round_s: median of a round from when its last member has come; 0 without rounds.
    """

    steps_per_s: float
    round_s: float


def make_plan(network: Network, work: Path) -> Plan:
    """Plans for machines whose predicted times are the ones they will wait for."""
    workload = WORKLOADS[WORKLOAD]()
    node_data = work / "node_data"
    node_data.mkdir()
    example = workload.inputs[: len(workload.inputs) // workload.num_microbatches]

    def planned(gflops: list[float], *, dry_run: bool) -> Plan:
        nodes = {
            str(host): {
                "IP": f"{network.address(host)}:{PORT}",
                "benchmarks": {
                    "ram": 4,
                    "bandwidth": network.payload_share * access.rate_bps / 1e6,
                    "latency": access.delay_s * 1e3,
                    "flops": gflops[host],
                },
            }
            for host, access in enumerate(network.hosts)
        }
        (node_data / "node_configs.json").write_text(json.dumps(nodes))
        with redirect_stdout(StringIO()):
            return clusterize(
                workload.build(),
                example_args=(example,),
                node_data=node_data,
                num_clusters=NUM_CLUSTERS,
                schedule=OWN["schedule"],
                update_frequency=OWN["update_frequency"],
                reduce_factor=STEPS_PER_ROUND,
                compression=OWN["compression"],
                leaves=dict(workload.leaves),
                dry_run=dry_run,
            )

    unit_s = max(computing_s(planned([1.0] * len(network.hosts), dry_run=True)).values())
    return planned([unit_s / each for each in STAGES_S] * NUM_CLUSTERS, dry_run=False)


def computing_s(plan: Plan) -> dict[int, float]:
    """Predicted seconds of both passes of a microbatch, by node."""
    assert plan.prediction is not None
    return {each.node_id: each.forward_s + each.backward_s for each in plan.prediction.stages}


def bounds_s(plan: Plan) -> list[float]:
    """Per cluster the seconds that its slowest stage needs per microbatch.

    For computing, or for the bytes that it sends, or for those that it receives.
    """
    assert plan.prediction is not None
    sent, received = defaultdict[int, int](int), defaultdict[int, int](int)
    for link in plan.prediction.links:
        if link.traffic in (Traffic.ACTIVATIONS, Traffic.GRADIENTS):
            sent[link.source] += link.num_bytes
            received[link.target] += link.num_bytes
    needed_s = {
        node.node_id: max(sent[node.node_id], received[node.node_id]) * 8 / node.bandwidth_bps
        for node in plan.nodes
    }
    busy_s = computing_s(plan)
    return [max(max(busy_s[node], needed_s[node]) for node in each) for each in plan.clusters]


def run(plan: Plan, network: Network, work: Path, arguments: dict[str, Any], num_steps: int) -> Ran:
    """Trains once, in fresh processes, each on its own machine."""
    waits = computing_s(plan)
    commands = []
    for node in waits:
        options = {
            "wait_s": waits[node],
            "num_microbatches": num_steps * UPDATE_FREQUENCY,
            "node": arguments,
        }
        commands.append(["benchmarks.wan_worker", f"node_{node}", json.dumps(options)])
    places = [partial(network.command, node) for node in waits]
    run_processes(commands, work, TIMEOUT_S, places)
    events = {
        node: [
            json.loads(line)
            for line in (work / "events" / f"node_{node}.jsonl").read_text().splitlines()
        ]
        for node in waits
    }
    drained = 0 if arguments["schedule"] == "1f1b" else NUM_DRAINED
    rate = sum(_steps_per_s(events[cluster[0]], drained) for cluster in plan.clusters)
    return Ran(rate, _round_s(plan, events))


def _steps_per_s(events: list[dict[str, Any]], num_drained: int) -> float:
    times = [datetime.fromisoformat(each["time"]) for each in events if each["event"] == "step"]
    kept = times[WARM_UP_STEPS - 1 : len(times) - num_drained]
    return (len(kept) - 1) / (kept[-1] - kept[0]).total_seconds()


def _round_s(plan: Plan, events: dict[int, list[dict[str, Any]]]) -> float:
    """A ring is as fast as its last member sees it, a round as its slowest ring."""
    lasted = {
        node: [each["duration_s"] for each in own if each["event"] == "averaging_round"]
        for node, own in events.items()
    }
    rings = [
        [min(members) for members in zip(*(lasted[node] for node in ring.members), strict=False)]
        for ring in plan.rings
    ]
    rounds = [max(each) for each in zip(*rings, strict=False)]
    return statistics.median(rounds) if rounds else 0.0
