"""Three nodes with memory and speed 4:2:1: the plan for them against an equal split of them.

`python -m benchmarks.unequal [--json] [--quick]`, on Linux. Real providers on loopback with one
thread each, slowed down to 0.8, 0.4 and 0.2 of a processor (`benchmarks/throttle.py`): together
1.4, so that two processors have room for all at once and for the throttling. Their links have the
delay of loopback, so that they do not decide. The equal split is what the planner makes of a file
in which the three have the same memory and speed: a third of the work each; the processes stay as
slow as they are. Each repeat runs all kinds in turn; medians are over the repeats.

The model's figures are for the same cuts on nodes as slow as they really are, from the speed of a
processor that `ravnest benchmark` measures.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.cutting import cut_workload
from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.throttle import Throttle
from benchmarks.workloads import WORKLOADS
from examples.digits.__main__ import free_ports
from ravnest.plan.model import Plan
from ravnest.plan.prediction import Traffic
from ravnest.planning.timing.parts import LinkTime, PipelineTime, StageTime
from ravnest.planning.timing.steady import steady_state
from ravnest.probing.compute import measure_compute
from ravnest.stage.schedule import Schedule

REPOSITORY = Path(__file__).resolve().parents[1]
SHARES = (0.8, 0.4, 0.2)
RAM_GB = (4.0, 2.0, 1.0)
BANDWIDTH_MBPS, LATENCY_MS = 10_000, 0.02  # of loopback
MIN_RATIO = 1.5
MAX_SPEED_ERROR = 0.1
TIMEOUT_S = 300
SCHEDULES = ("async", "1f1b")


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    quick: bool = arguments.quick
    name = "digits" if quick else "gpt"
    torch.set_num_threads(1)
    gflops = measure_compute(torch.device("cpu"), seconds=0.3 if quick else 4.5).flops * 1e-9
    options = {
        "gflops": gflops,
        "steps": 1 if quick else 3,
        "rounds": 1,
        "calibrate_s": 0.5 if quick else 1.5,
    }
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(1 if quick else 3):
        for schedule in SCHEDULES[:1] if quick else SCHEDULES:
            for split in ("planned", "equal"):
                key = f"{split} {schedule}"
                runs.setdefault(key, []).append(run(name, split, {**options, "schedule": schedule}))
                if not arguments.json:
                    show(key, runs[key][-1])
    figures = {"processor_gflops": gflops, **summary(runs)}
    return finish(figures, claims_of(figures), as_json=arguments.json)


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians per kind, ratios per repeat, and how fast the processes really were."""
    figures: dict[str, Any] = {}
    for key, repeats in runs.items():
        rates = [each["samples_per_s"] for each in repeats]
        figures[key] = {**repeats[0], "samples_per_s": statistics.median(rates), "repeats": rates}
    for schedule in SCHEDULES:
        if f"planned {schedule}" not in runs:
            continue
        planned, equal = (runs[f"{split} {schedule}"] for split in ("planned", "equal"))
        ratios = [
            one["samples_per_s"] / other["samples_per_s"]
            for one, other in zip(planned, equal, strict=True)
        ]
        model = planned[0]["model_samples_per_s"] / equal[0]["model_samples_per_s"]
        figures[f"ratio {schedule}"] = {
            "measured": statistics.median(ratios),
            "repeats": ratios,
            "model": model,
        }
    speeds = [run["speeds"] for repeats in runs.values() for run in repeats]
    figures["speeds"] = [statistics.median(values) for values in zip(*speeds, strict=True)]
    return figures


def claims_of(figures: dict[str, Any]) -> list[Claim]:
    """What is promised of the figures."""
    claims = []
    for schedule in SCHEDULES:
        if (ratio := figures.get(f"ratio {schedule}")) is None:
            continue
        for source in ("measured", "model"):
            name = f"throughput of the plan over that of equal splitting, {schedule}, {source}"
            claims.append(Claim(name, ratio[source], MIN_RATIO, at_least=True))
    errors = [
        abs(speed / share - 1) for speed, share in zip(figures["speeds"], SHARES, strict=True)
    ]
    name = "largest error of the speeds that the throttled processes have"
    return [*claims, Claim(name, max(errors), MAX_SPEED_ERROR)]


def run(name: str, split: str, options: dict[str, Any]) -> dict[str, Any]:
    """Plans and trains once, in fresh processes."""
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        work = Path(folder)
        plan = make_plan(
            name,
            work,
            options["gflops"],
            is_equal=split == "equal",
            schedule=options["schedule"],
        )
        figures = train(name, work, options)
    workload = WORKLOADS[name]()
    root = figures[plan.clusters[0][0]]
    return {
        "samples_per_s": options["steps"]
        * len(workload.inputs)
        / statistics.median(root["rounds_s"]),
        "model_samples_per_s": modelled(plan, options["gflops"]),
        "speeds": [figures[node]["speed"] for node in range(len(SHARES))],
        "order": list(plan.clusters[0]),
        "work_shares": work_shares(plan),
    }


def make_plan(name: str, work: Path, gflops: float, *, is_equal: bool, schedule: str) -> Plan:
    """Writes the nodes as they are, or all like their mean, and cuts the workload for them."""
    node_data = work / "node_data"
    node_data.mkdir()
    nodes = {}
    for node_id, port in enumerate(free_ports(len(SHARES))):
        share = statistics.mean(SHARES) if is_equal else SHARES[node_id]
        nodes[str(node_id)] = {
            "IP": f"127.0.0.1:{port}",
            "benchmarks": {
                "ram": statistics.mean(RAM_GB) if is_equal else RAM_GB[node_id],
                "bandwidth": BANDWIDTH_MBPS,
                "latency": LATENCY_MS,
                "flops": share * gflops,
            },
        }
    (node_data / "node_configs.json").write_text(json.dumps(nodes))
    return cut_workload(WORKLOADS[name](), node_data, schedule)


def modelled(plan: Plan, gflops: float) -> float:
    """Samples per second by the time model, of the plan's cuts on nodes as slow as they are."""
    prediction = plan.prediction
    assert prediction is not None
    planned = {node.node_id: node.flops or 0.0 for node in plan.nodes}
    stages = []
    for stage in prediction.stages:
        slower = planned[stage.node_id] / (SHARES[stage.node_id] * gflops * 1e9)
        times = (stage.forward_s, stage.backward_s, stage.update_s, stage.weight_s)
        stages.append(StageTime(*(slower * seconds for seconds in times)))
    sent = {(link.source, link.target, link.traffic): link for link in prediction.links}
    links = []
    for source, target in itertools.pairwise(plan.clusters[0]):
        forward = sent[source, target, Traffic.ACTIVATIONS]
        backward = sent.get((target, source, Traffic.GRADIENTS))
        back_s = 0.0 if backward is None else backward.seconds
        links.append(LinkTime.between_equals(forward.seconds, back_s, forward.latency_s))
    run = prediction.run
    pipeline = PipelineTime(
        Schedule.parse(run.schedule), run.update_frequency, tuple(stages), tuple(links)
    )
    samples = run.update_frequency * run.samples_per_microbatch
    return samples / steady_state(pipeline).step_time_s


def work_shares(plan: Plan) -> list[float]:
    """Per stage its part of the work."""
    planned = {node.node_id: node.flops or 0.0 for node in plan.nodes}
    work = [stage.step_time_s * planned[stage.node_id] for stage in plan.stages]
    return [each / sum(work) for each in work]


def train(name: str, work: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs the providers, throttled once all have loaded; what each has written, by node id.

    Raises:
        RuntimeError: one of them failed.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    outputs = [work / f"worker_{node}.json" for node in range(len(SHARES))]
    processes = []
    with ExitStack() as stack:
        for node, output in enumerate(outputs):
            log = stack.enter_context((work / f"log_{node}.txt").open("w+"))
            own = json.dumps({**options, "name": f"node_{node}"})
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.unequal_worker", name, str(output), own],
                cwd=work,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            stack.callback(_end, process)
            processes.append(process)
        _let_go(processes, work)
    return [json.loads(output.read_text()) for output in outputs]


def _let_go(processes: Sequence[subprocess.Popen[str]], work: Path) -> None:
    """Waits for all to be ready, throttles them, starts them, and waits for their end."""
    for node, process in enumerate(processes):
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"node {node} failed:\n{(work / f'log_{node}.txt').read_text()}")
    shares = {process.pid: share for process, share in zip(processes, SHARES, strict=True)}
    throttle = Throttle(shares)
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        deadline = time.monotonic() + TIMEOUT_S
        for node, process in enumerate(processes):
            if process.wait(max(0.1, deadline - time.monotonic())) != 0:
                text = (work / f"log_{node}.txt").read_text()
                raise RuntimeError(f"node {node} exited with {process.returncode}:\n{text}")
    finally:
        throttle.close()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def show(key: str, result: dict[str, Any]) -> None:
    """Prints one run."""
    shares = " ".join(f"{share:.0%}" for share in result["work_shares"])
    speeds = " ".join(f"{speed:.3f}" for speed in result["speeds"])
    print(
        f"{key:14} {result['samples_per_s']:7.3f} samples/s "
        f"(model {result['model_samples_per_s']:.3f})   nodes {result['order']} "
        f"with {shares} of the work, speeds {speeds}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
