"""Shared by all tests: nothing may be left behind, and real processes are easy to start."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import psutil
import pytest

# Tests are timed, not examples: the first may pay for an import, any for a busy machine.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.register_profile("endurance", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("untimed")

REPOSITORY = Path(__file__).resolve().parents[1]
RELEASE_GRACE_S = 5.0

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has them ignore Ctrl-C, and with them every
    # process that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _listening_ports() -> set[int]:
    connections = psutil.Process().net_connections(kind="tcp")
    return {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves threads, child processes or listening ports."""
    threads, ports = set(threading.enumerate()), _listening_ports()
    children = set(psutil.Process().children(recursive=True))
    yield
    for thread in set(threading.enumerate()) - threads:
        thread.join(RELEASE_GRACE_S)
    left = [thread.name for thread in set(threading.enumerate()) - threads]
    assert not left, f"threads left behind: {left}"
    orphans = set(psutil.Process().children(recursive=True)) - children
    _, alive = psutil.wait_procs(orphans, RELEASE_GRACE_S)
    assert not alive, f"processes left behind: {alive}"
    assert _listening_ports() <= ports, "listening ports left behind"


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def write_node_configs(folder: Path, num_nodes: int, **benchmarks: float) -> Path:
    """A node_configs.json of loopback nodes below `folder`; returns the node_data folder."""
    node_data = folder / "node_data"
    node_data.mkdir(parents=True, exist_ok=True)
    values = {"ram": 4, "bandwidth": 1000, **benchmarks}
    nodes = {
        str(node_id): {"IP": f"127.0.0.1:{port}", "benchmarks": values}
        for node_id, port in enumerate(free_ports(num_nodes))
    }
    (node_data / "node_configs.json").write_text(json.dumps(nodes))
    return node_data


@pytest.fixture
def node_configs() -> Callable[..., Path]:
    """`node_configs(folder, num_nodes, ram=..., bandwidth=...)` writes the file."""
    return write_node_configs


@dataclass
class Process:
    """A started process and where its output goes."""

    popen: subprocess.Popen[bytes]
    log: Path

    def wait(self, timeout_s: float = 60) -> int:
        """Its exit code."""
        return self.popen.wait(timeout_s)

    @property
    def output(self) -> str:
        """Everything it has printed so far."""
        return self.log.read_text(errors="replace")


@dataclass
class Processes:
    """Starts Python processes and ends whatever is left of them."""

    folder: Path
    started: list[Process] = field(default_factory=list)

    def start(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
    ) -> Process:
        """Runs `python *arguments` in `cwd` with one thread and the repository on its path."""
        log = self.folder / f"process_{len(self.started)}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=cwd,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        process = Process(popen, log)
        self.started.append(process)
        return process

    def wait_all(self, timeout_s: float = 90) -> None:
        """All must exit with 0; shows the output of one that does not."""
        deadline = time.monotonic() + timeout_s
        for process in self.started:
            code = process.wait(max(0.1, deadline - time.monotonic()))
            assert code == 0, f"exit code {code}:\n{process.output}"

    def end(self) -> None:
        """Kills what still runs."""
        for process in self.started:
            process.popen.kill()
            process.popen.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts real processes; what still runs at the end of the test is killed."""
    folder = tmp_path / "logs"
    folder.mkdir()
    running = Processes(folder)
    try:
        yield running
    finally:
        running.end()
