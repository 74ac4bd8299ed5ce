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
from pathlib import Path
from typing import Any

from benchmarks.cutting import cut_workload
from benchmarks.processes import free_ports, run_processes, write_loopback_nodes
from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.waits import STAGE_S
from benchmarks.workloads import WAITS, WORKLOADS
from ravnest.planning.timing.parts import LinkTime, PipelineTime, StageTime
from ravnest.planning.timing.steady import steady_state
from ravnest.stage.schedule import Schedule

NUM_STAGES = 3
MEMORY_GB = 2
MAX_EPOCH_S = 0.15
MAX_ABOVE_TORCH = 150e6
TIMEOUT_S = 300


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    arguments = parse_arguments(__doc__ or "")
    repeats = 1 if arguments.quick else 3
    rounds, steps = (2, 1) if arguments.quick else (3, 3)
    figures: dict[str, Any] = {}
    for name in ("digits",) if arguments.quick else ("digits", "gpt"):
        figures[name] = compare(name, repeats, rounds=rounds, steps=steps)
        if not arguments.json:
            show(name, figures[name])
    for name, number in list(WAITS.items())[: 1 if arguments.quick else None]:
        figures[name] = compare_waits(name, number, repeats, steps=1 if arguments.quick else 4)
    figures["digits epochs"] = [digits_epoch() for _ in range(repeats)]
    return finish(figures, claims_of(figures), as_json=arguments.json)


def claims_of(figures: dict[str, Any]) -> list[Claim]:
    """What is promised of each figure that there is."""
    claims = []
    if (gpt := figures.get("gpt")) is not None:
        own, one = gpt["ravnest 1f1b"], gpt["one process"]
        claims += [
            Claim("GPT, 1f1b over torch's 1F1B, step time", gpt["ravnest 1f1b / torch 1f1b"], 0.97),
            Claim(
                "GPT, async over torch's 1F1B, step time", gpt["ravnest async / torch 1f1b"], 0.9
            ),
            Claim("GPT, 1f1b over one process, processor s", own["cpu_s"] / one["cpu_s"], 1.05),
        ]
    for name in WAITS:
        if name in figures:
            waits = figures[name]
            claims += [
                Claim(f"{name}, 1f1b over its theoretical time", waits["1f1b / theory"], 1.03),
                Claim(
                    f"{name}, async, rate over the slowest stage's",
                    waits["async rate / slowest stage's"],
                    0.97,
                    at_least=True,
                ),
            ]
    epochs = figures["digits epochs"]
    seconds = statistics.median(each["epoch_s"] for each in epochs)
    memory = statistics.median(each["above_torch_bytes"] for each in epochs)
    return [
        *claims,
        Claim("seconds of an epoch of the digits CNN over three providers", seconds, MAX_EPOCH_S),
        Claim("its largest provider's bytes above importing torch", memory, MAX_ABOVE_TORCH),
    ]


def compare_waits(name: str, number: int, repeats: int, *, steps: int) -> dict[str, float]:
    """Seconds per step beside what waits alone would take; medians over the repeats."""
    theory = PipelineTime(
        Schedule.ONE_F_ONE_B,
        number,
        tuple(StageTime(total_s / 3, 2 * total_s / 3) for total_s in STAGE_S),
        (LinkTime.between_equals(0.0, 0.0, 0.0),) * (NUM_STAGES - 1),
    )
    theory_s, slowest_s = steady_state(theory).step_time_s, number * max(STAGE_S)
    flushed, endless, alone = [], [], []
    for _ in range(repeats):
        options = {"rounds": 2, "steps": steps}
        alone.append(run_kind("slowest stage", name, options)["step_s"])
        flushed.append(run_kind("ravnest 1f1b", name, options)["step_s"])
        # An epoch fills and empties the pipeline once, however many steps it has.
        fill_s = sum(STAGE_S) - max(STAGE_S)
        endless.append(run_kind("ravnest async", name, options)["step_s"] - fill_s / steps)
    return {
        "theory_s": theory_s,
        "1f1b_s": statistics.median(flushed),
        "async_s": statistics.median(endless),
        "1f1b / theory": statistics.median(flushed) / theory_s,
        "async rate / slowest stage's": slowest_s / statistics.median(endless),
        "plain PyTorch's rate of that stage alone / slowest stage's": slowest_s
        / statistics.median(alone),
    }


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
        elif kind == "slowest stage":
            workers = [("stage", options)]
        elif kind == "torch 1f1b":
            port = free_ports(1)[0]
            workers = [("torch", {**options, "rank": r, "port": port}) for r in range(NUM_STAGES)]
        else:
            schedule = kind.split()[1]
            names = plan(name, work, schedule)
            workers = [
                ("provider", {**options, "name": each, "schedule": schedule}) for each in names
            ]
        results = run_workers(name, workers, work)
    return {
        "step_s": statistics.median(results[0]["step_s"]),
        "cpu_s": sum(result["cpu_s"] for result in results),
        "loss": next(r["loss"] for r in results if r["loss"] is not None),
    }


def plan(name: str, work: Path, schedule: str) -> list[str]:
    """Cuts the workload for three nodes below `work`; node names from root to leaf."""
    node_data = work / "node_data"
    node_data.mkdir()
    write_loopback_nodes(node_data, NUM_STAGES, memory_gb=MEMORY_GB)
    made = cut_workload(WORKLOADS[name](), node_data, schedule)
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


def digits_epoch() -> dict[str, float]:
    """The demo over three providers: an epoch's median seconds, and memory above torch's own."""
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        work = Path(folder)
        (work / "node_data").mkdir()
        write_loopback_nodes(work / "node_data", NUM_STAGES, memory_gb=MEMORY_GB)
        run_processes([["benchmarks.digits_epoch", "plan"]], work, TIMEOUT_S)
        run_processes([["benchmarks.torch_peak", "torch_peak.json"]], work, TIMEOUT_S)
        names = [f"node_{node}" for node in range(NUM_STAGES)]
        run_processes([["benchmarks.digits_epoch", "one process"]], work, TIMEOUT_S)
        alone = json.loads((work / "epochs.json").read_text())
        run_processes([["benchmarks.digits_epoch", name] for name in names], work, TIMEOUT_S)
        durations = json.loads((work / "epochs.json").read_text())
        peaks = {n: json.loads((work / f"{n}_peak.json").read_text()) for n in ("torch", *names)}
    above = max(peaks[name] for name in names) - peaks["torch"]
    return {
        "epoch_s": statistics.median(durations[1:]),
        "one process epoch_s": statistics.median(alone[1:]),
        "above_torch_bytes": float(above),
    }


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
