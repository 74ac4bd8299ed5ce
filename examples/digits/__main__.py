"""The demo: one process, three nodes in one cluster, six nodes in two; side by side.

`python -m examples.digits` runs it in a folder of its own and prints a table. Every step is what a
user would do by hand: write node_configs.json, clusterize, start the providers, fuse, load.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, chdir
from dataclasses import dataclass
from pathlib import Path

import torch

from examples.digits.model import SEED, DigitsCNN, accuracy, load_data
from ravnest import clusterize, model_fusion, set_seed

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_ACCURACY_GAP = 0.01
TIMEOUT_S = 110


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    title: str
    accuracy: float
    seconds: float
    peak_memory_bytes: list[int]
    exit_codes: list[int]


def main() -> int:
    """Runs the three trainings; 0 when all exited cleanly and reached the same accuracy."""
    with tempfile.TemporaryDirectory(prefix="ravnest-digits-") as folder:
        work = Path(folder)
        results = [
            run_single(work / "single"),
            run_providers("3 nodes, 1 cluster", work / "three", num_nodes=3, num_clusters=1),
            run_providers("6 nodes, 2 clusters", work / "six", num_nodes=6, num_clusters=2),
        ]
    print_table(results)
    exited = all(code == 0 for result in results for code in result.exit_codes)
    gap = max(results[0].accuracy - result.accuracy for result in results)
    print(
        f"\nfused models are at most {gap:.2%} behind one process (goal: {MAX_ACCURACY_GAP:.0%});"
        f"\nevery provider exited with 0: {exited}"
    )
    return 0 if exited and gap <= MAX_ACCURACY_GAP else 1


def run_single(work: Path) -> Result:
    """Trains in one process."""
    work.mkdir()
    print("training in one process ...", flush=True)
    codes = run_all([["examples.digits.single"]], work)
    report = json.loads((work / "report_single.json").read_text())
    memory = [report["peak_memory_bytes"]]
    return Result("one process", report["accuracy"], report["seconds"], memory, codes)


def run_providers(title: str, work: Path, *, num_nodes: int, num_clusters: int) -> Result:
    """Plans, trains over providers, fuses, and tests the fused original model."""
    (work / "node_data").mkdir(parents=True)
    print(f"\ntraining over {title} ...", flush=True)
    write_node_configs(work / "node_data" / "node_configs.json", num_nodes)
    set_seed(SEED)
    model = DigitsCNN()
    with chdir(work):
        _, test_loader = load_data()  # which the providers find
        plan = clusterize(model, example_args=(torch.rand(64, 1, 8, 8),), num_clusters=num_clusters)
        names = [f"node_{stage.node_id}" for stage in plan.stages]
        codes = run_all([["examples.digits.provider", name] for name in names], work)
        if any(codes):
            return Result(title, 0.0, 0.0, [], codes)
        reports = [json.loads(Path(f"report_{name}.json").read_text()) for name in names]
        model.load_state_dict(model_fusion(), strict=True)
    return Result(
        title,
        accuracy(model, test_loader),
        max(report["seconds"] for report in reports),
        [report["peak_memory_bytes"] for report in reports],
        codes,
    )


def write_node_configs(path: Path, num_nodes: int) -> None:
    """Describes `num_nodes` providers of this machine, on ports that are free now."""
    nodes = {
        str(node_id): {"IP": f"127.0.0.1:{port}", "benchmarks": {"ram": 2, "bandwidth": 1000}}
        for node_id, port in enumerate(free_ports(num_nodes))
    }
    path.write_text(json.dumps(nodes, indent=2))


def free_ports(count: int) -> list[int]:
    """Ports of this machine that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def run_all(modules: Sequence[Sequence[str]], work: Path) -> list[int]:
    """Runs `python -m` for each at once, in `work`; their exit codes."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen([sys.executable, "-m", *module], cwd=work, env=environment)
        for module in modules
    ]
    deadline = time.monotonic() + TIMEOUT_S
    try:
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def print_table(results: Sequence[Result]) -> None:
    """Accuracy, time and memory side by side."""
    print(f"\n{'':22}{'accuracy':>10}{'seconds':>10}   peak MB per process")
    for result in results:
        memory = ", ".join(f"{peak / 1e6:.0f}" for peak in result.peak_memory_bytes)
        print(f"{result.title:22}{result.accuracy:>10.2%}{result.seconds:>10.1f}   {memory}")


if __name__ == "__main__":
    sys.exit(main())
