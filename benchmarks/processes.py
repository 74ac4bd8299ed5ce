"""Starts the processes of a benchmark; imports nothing large, for children inherit peaks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def write_loopback_nodes(folder: Path, count: int, *, memory_gb: float) -> None:
    """Describes nodes of this machine, on ports that are free now."""
    benchmarks = {"ram": memory_gb, "bandwidth": 1000}
    nodes = {
        str(node_id): {"IP": f"127.0.0.1:{port}", "benchmarks": benchmarks}
        for node_id, port in enumerate(free_ports(count))
    }
    (folder / "node_configs.json").write_text(json.dumps(nodes))


def free_ports(count: int) -> list[int]:
    """Ports of this machine that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def run_processes(
    commands: Sequence[Sequence[str]],
    work: Path,
    timeout_s: float,
    places: Sequence[Callable[[list[str]], list[str]]] = (),
    num_threads: int = 1,
) -> None:
    """Runs `python -m` for each at once in `work`; RuntimeError with its output when one fails.

    Args:
        places: what makes of each command line one that runs it elsewhere.
        num_threads: of each process for one operator on the processor.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "OMP_NUM_THREADS": str(num_threads),
    }
    logs = [work / f"log_{index}.txt" for index in range(len(commands))]
    processes = []
    for number, (command, log) in enumerate(zip(commands, logs, strict=True)):
        line = [sys.executable, "-m", *command]
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen(
                    places[number](line) if places else line,
                    cwd=work,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    deadline = time.monotonic() + timeout_s
    try:
        for process, log in zip(processes, logs, strict=True):
            if process.wait(max(0.1, deadline - time.monotonic())) != 0:
                raise RuntimeError(f"{process.args} failed:\n{log.read_text()}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
