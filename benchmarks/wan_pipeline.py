"""One pipeline over slow links, beside torch.distributed.pipelining over the same links.

The 22-million-parameter GPT over three stages; each stage is a process in a network namespace of
its own, with one thread. Where the machine has fewer free cores than stages, or slow ones, its
computing hides what the links cost. So there is a second workload of the same bytes, whose stages
wait as long as the GPT's compute on a core of 123 GFLOP/s. Part of `benchmarks.wan`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.cutting import cut_workload
from benchmarks.links import Access, Network
from benchmarks.prediction import check_link
from benchmarks.processes import run_processes
from benchmarks.waits import GPT_STAGE_S
from benchmarks.workloads import WORKLOADS

GPT, WAITS = "gpt", "gpt waits"
NUM_STAGES = 3
LINK = Access(100e6, 10e-3)
"""100 Mbps; any two hosts are 40 ms apart and back."""
MEMORY_GB = 2
GFLOPS = 50.0
"""Of a core, roughly: what the planner weighs computing against links by."""
PORT = 8080
TIMEOUT_S = 600

TORCH, OWN = "torch 1f1b", "ravnest 1f1b"
KINDS: dict[str, dict[str, Any]] = {
    OWN: {"schedule": "1f1b"},
    "ravnest zb-h1": {"schedule": "zb-h1"},
    "ravnest async": {"schedule": "async"},
    "ravnest 1f1b fp16": {"schedule": "1f1b", "compression": True},
}


def compare(
    workload: str, repeats: int, *, rounds: int, steps: int, kinds: tuple[str, ...]
) -> dict[str, Any]:
    """Medians of seconds and processor seconds per step by kind, their ratios, and the links.

    Every repeat runs all kinds in turn, over links that are measured before it.
    """
    measured: dict[str, list[dict[str, float]]] = {kind: [] for kind in (TORCH, *kinds)}
    links = []
    options = {"rounds": rounds, "steps": steps}
    for _ in range(repeats):
        with Network([LINK] * NUM_STAGES) as network:
            links += [check_link(network, host) for host in range(NUM_STAGES - 1)]
            for kind, runs in measured.items():
                runs.append(run_kind(kind, workload, network, options))
    result: dict[str, Any] = {"links": links, "repeats": measured}
    for kind, runs in measured.items():
        result[kind] = {
            key: statistics.median(run[key] for run in runs) for key in ("step_s", "cpu_s", "loss")
        }
        ratios = [
            own["step_s"] / torch["step_s"]
            for own, torch in zip(runs, measured[TORCH], strict=True)
        ]
        result[f"{kind} / {TORCH}"] = statistics.median(ratios)
    return result


def run_kind(
    kind: str, workload: str, network: Network, options: dict[str, Any]
) -> dict[str, float]:
    """One training by one kind, in fresh processes, one per host."""
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        work = Path(folder)
        if kind == TORCH:
            hosts = list(range(NUM_STAGES))
            shared = {**options, "address": network.address(0), "port": PORT}
            own = [{"rank": host, "interface": network.device(host)} for host in hosts]
            worker = "torch"
        else:
            hosts = plan(workload, network, work, KINDS[kind]["schedule"])
            shared = {**options, **KINDS[kind], "insecure": True}
            own = [{"name": f"node_{host}"} for host in hosts]
            worker = "provider"
        outputs = [work / f"worker_{host}.json" for host in hosts]
        commands = [
            ["benchmarks.pipeline_workers", worker, workload, str(output), json.dumps(each)]
            for output, each in zip(outputs, ({**shared, **each} for each in own), strict=True)
        ]
        places = [partial(network.command, host) for host in hosts]
        run_processes(commands, work, TIMEOUT_S, places)
        results = [json.loads(output.read_text()) for output in outputs]
    return {
        "step_s": statistics.median(results[0]["step_s"]),
        "cpu_s": sum(result["cpu_s"] for result in results),
        "loss": next(result["loss"] for result in results if result["loss"] is not None),
    }


def plan(name: str, network: Network, work: Path, schedule: str) -> list[int]:
    """Cuts the workload for the hosts below `work`; the hosts from root to leaf."""
    workload = WORKLOADS[name]()
    node_data = work / "node_data"
    node_data.mkdir()
    gflops = GFLOPS
    if name == WAITS:  # their work is no arithmetic: such a speed that it takes what they wait
        _describe(network, node_data / "node_configs.json", gflops)
        prediction = cut_workload(workload, node_data, schedule, dry_run=True).prediction
        assert prediction is not None
        first = prediction.stages[0]
        gflops *= (first.forward_s + first.backward_s) / GPT_STAGE_S
    _describe(network, node_data / "node_configs.json", gflops)
    return list(cut_workload(workload, node_data, schedule).clusters[0])


def _describe(network: Network, file: Path, gflops: float) -> None:
    nodes = {
        str(host): {
            "IP": f"{network.address(host)}:{PORT}",
            "benchmarks": {
                "ram": MEMORY_GB,
                "bandwidth": network.payload_share * access.rate_bps / 1e6,
                "latency": access.delay_s * 1e3,
                "flops": gflops,
            },
        }
        for host, access in enumerate(network.hosts)
    }
    file.write_text(json.dumps(nodes))
