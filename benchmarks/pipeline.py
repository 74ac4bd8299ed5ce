"""Time per step over three stages, beside one process and torch.distributed.pipelining.

`python -m benchmarks.pipeline [--json] [--quick]`. Every worker has one thread. Each repeat runs
all kinds in turn, so that a drifting machine drifts for all; medians and ratios are over the
repeats.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.processes import free_ports, run_processes, write_loopback_nodes
from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.workloads import WORKLOADS
from ravnest import clusterize

NUM_STAGES = 3
MEMORY_GB = 2
MAX_EPOCH_S = 0.5
TIMEOUT_S = 300


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    repeats = 1 if arguments.quick else 3
    figures: dict[str, Any] = {}
    for name in ("digits",) if arguments.quick else ("digits", "gpt"):
        steps = 1 if arguments.quick else 3
        figures[name] = compare(name, repeats, rounds=2 if arguments.quick else 3, steps=steps)
        if not arguments.json:
            show(name, figures[name])
    figures["digits_epoch_s"] = [digits_epoch() for _ in range(repeats)]
    claims = [
        Claim(
            "seconds an epoch of the digits CNN takes over three providers",
            statistics.median(figures["digits_epoch_s"]),
            MAX_EPOCH_S,
        )
    ]
    return finish(figures, claims, as_json=arguments.json)


def compare(name: str, repeats: int, *, rounds: int, steps: int) -> dict[str, Any]:
    """Median seconds per step and processor seconds per step, by kind, and the ratios."""
    measured: dict[str, list[dict[str, float]]] = {}
    options = {"rounds": rounds, "steps": steps}
    for _ in range(repeats):
        for kind in ("one process", "torch 1f1b", "ravnest 1f1b", "ravnest async"):
            measured.setdefault(kind, []).append(run_kind(kind, name, options))
    result: dict[str, Any] = {
        kind: {
            key: statistics.median(run[key] for run in runs) for key in ("step_s", "cpu_s", "loss")
        }
        for kind, runs in measured.items()
    }
    for kind in ("ravnest 1f1b", "ravnest async"):
        for peer in ("one process", "torch 1f1b"):
            ratios = [
                own["step_s"] / other["step_s"]
                for own, other in zip(measured[kind], measured[peer], strict=True)
            ]
            result[f"{kind} / {peer}"] = statistics.median(ratios)
    return result


def run_kind(kind: str, name: str, options: dict[str, Any]) -> dict[str, float]:
    """One training by one kind, in fresh processes."""
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        work = Path(folder)
        if kind == "one process":
            workers = [("single", options)]
        elif kind == "torch 1f1b":
            port = free_ports(1)[0]
            workers = [("torch", {**options, "rank": r, "port": port}) for r in range(NUM_STAGES)]
        else:
            schedule = kind.split()[1]
            names = plan(name, work)
            workers = [
                ("provider", {**options, "name": each, "schedule": schedule}) for each in names
            ]
        results = run_workers(name, workers, work)
    return {
        "step_s": statistics.median(results[0]["step_s"]),
        "cpu_s": sum(result["cpu_s"] for result in results),
        "loss": next(r["loss"] for r in results if r["loss"] is not None),
    }


def plan(name: str, work: Path) -> list[str]:
    """Cuts the workload for three nodes below `work`; node names from root to leaf."""
    workload = WORKLOADS[name]()
    (work / "node_data").mkdir()
    write_loopback_nodes(work / "node_data", NUM_STAGES, memory_gb=MEMORY_GB)
    example = workload.inputs[: len(workload.inputs) // workload.num_microbatches]
    with chdir(work), redirect_stdout(StringIO()):
        made = clusterize(workload.build(), example_args=(example,), num_clusters=1)
    return [f"node_{node_id}" for node_id in made.clusters[0]]


def run_workers(
    name: str, workers: Sequence[tuple[str, dict[str, Any]]], work: Path
) -> list[dict[str, Any]]:
    """Starts all workers at once and returns their figures in the same order."""
    outputs = [work / f"worker_{index}.json" for index in range(len(workers))]
    commands = [
        [kind, name, str(output), json.dumps(options)]
        for (kind, options), output in zip(workers, outputs, strict=True)
    ]
    run_processes(
        [["benchmarks.pipeline_workers", *command] for command in commands], work, TIMEOUT_S
    )
    return [json.loads(output.read_text()) for output in outputs]


def digits_epoch() -> float:
    """Seconds of an epoch of the demo over three providers: median over its later epochs."""
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        work = Path(folder)
        (work / "node_data").mkdir()
        write_loopback_nodes(work / "node_data", NUM_STAGES, memory_gb=MEMORY_GB)
        commands = [["benchmarks.digits_epoch", "plan"]]
        run_processes(commands, work, TIMEOUT_S)
        commands = [["benchmarks.digits_epoch", f"node_{node}"] for node in range(NUM_STAGES)]
        run_processes(commands, work, TIMEOUT_S)
        durations = json.loads((work / "epochs.json").read_text())
    return statistics.median(durations[1:])


def show(name: str, result: dict[str, Any]) -> None:
    """Prints one comparison."""
    print(f"\n{name}: seconds per step over {NUM_STAGES} stages, 1 thread each")
    for key, value in result.items():
        if isinstance(value, dict):
            print(f"  {key:16} {value['step_s']:.4f} s   {value['cpu_s']:.4f} processor s")
        else:
            print(f"  {key:32} {value:.3f}")


if __name__ == "__main__":
    sys.exit(main())
