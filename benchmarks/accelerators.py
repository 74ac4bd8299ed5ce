"""Tokens per second of a GPT over several GPUs of one host, beside torch.distributed.pipelining.

`python -m benchmarks.accelerators [--json] [--quick]`. Needs two CUDA devices or more, and says so
and exits with 2 without. A GPT of 1.27 billion parameters in bfloat16, one node (and one stage) per
device: Ravnest's nodes exchange tensors through the host's memory and TCP, the peer's over NCCL.
Every repeat runs all kinds in turn; medians are over the repeats.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.accelerators_worker import CONTEXT, NUM_BLOCKS, WIDTH, num_parameters
from benchmarks.processes import free_ports, run_processes
from benchmarks.report import Claim, finish, parse_arguments

PEAK_FLOPS = 989e12  # of an H100 in bfloat16, dense
GOAL = 0.9
TIMEOUT_S = 240
MAX_THREADS = 8  # of each process, whichever library it runs
KINDS = ("torch 1f1b", "ravnest 1f1b", "ravnest async")


def main() -> int:
    """Runs the benchmark; 1 when the claim does not hold, 2 when it cannot be run here."""
    arguments = parse_arguments(__doc__ or "")
    devices = torch.cuda.device_count()
    if devices < 2:
        print(f"no run over several GPUs here: torch sees {devices}", file=sys.stderr)
        return 2
    rows = {
        size: compare(size, 1 if arguments.quick else 3) for size in (2, 4, 8) if size <= devices
    }
    if not arguments.json:
        show(rows)
    claims = [
        Claim(
            f"tokens per second over torch's 1F1B over NCCL, {size} devices, best schedule",
            max(row[kind]["tokens_per_s"] for kind in KINDS[1:]) / row[KINDS[0]]["tokens_per_s"],
            GOAL,
            at_least=True,
        )
        for size, row in rows.items()
    ]
    return finish({"devices": rows}, claims, as_json=arguments.json)


def compare(size: int, repeats: int) -> dict[str, Any]:
    """By kind: median tokens per second, share of the devices' peak, and the last loss."""
    measured: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        order = plan(size, Path(folder))
        for _ in range(repeats):
            for kind in KINDS:
                measured.setdefault(kind, []).append(run_kind(kind, order, Path(folder)))
    operations = 6.0 * num_parameters() + 12.0 * NUM_BLOCKS * CONTEXT * WIDTH
    found = {}
    for kind, runs in measured.items():
        rate = statistics.median(run["tokens_per_s"] for run in runs)
        found[kind] = {
            "tokens_per_s": rate,
            "utilisation": rate * operations / (size * PEAK_FLOPS),
            "loss": runs[-1]["loss"],
        }
    return found


def plan(size: int, work: Path) -> list[int]:
    """Cuts the model for one cluster of that many nodes below `work`; node ids in order."""
    (work / "node_data").mkdir()
    benchmarks = {"ram": 60, "bandwidth": 20000, "latency": 0.05, "flops": 300000}
    nodes = {
        str(node): {
            "IP": f"127.0.0.1:{port}",
            "benchmarks": {**benchmarks, "device": f"cuda:{node}"},
        }
        for node, port in enumerate(free_ports(size))
    }
    (work / "node_data" / "node_configs.json").write_text(json.dumps(nodes))
    run_processes([["benchmarks.accelerators_worker", "plan", "order.json", ""]], work, TIMEOUT_S)
    order: list[int] = json.loads((work / "order.json").read_text())
    return order


def run_kind(kind: str, order: list[int], work: Path) -> dict[str, float]:
    """One training by one kind, in fresh processes."""
    library, schedule = kind.split()
    options = {"size": len(order), "port": free_ports(1)[0], "schedule": schedule}
    commands = [
        [
            "benchmarks.accelerators_worker",
            library,
            f"{rank}.json",
            json.dumps({**options, "rank": rank, "node": node}),
        ]
        for rank, node in enumerate(order)
    ]
    threads = max(1, min(MAX_THREADS, (os.cpu_count() or 1) // len(order)))
    run_processes(commands, work, TIMEOUT_S, num_threads=threads)
    first, last = (json.loads((work / f"{k}.json").read_text()) for k in (0, len(order) - 1))
    return {"tokens_per_s": statistics.median(first["tokens_per_s"]), "loss": last["loss"]}


def show(rows: dict[int, dict[str, Any]]) -> None:
    """Prints a line per kind."""
    for size, row in rows.items():
        for kind, figures in row.items():
            print(
                f"{size} devices, {kind:14} {figures['tokens_per_s']:9.0f} tokens/s, "
                f"{100 * figures['utilisation']:.1f} % of the devices' peak, "
                f"loss {figures['loss']:.3f}"
            )


if __name__ == "__main__":
    sys.exit(main())
