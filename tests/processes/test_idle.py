"""A provider that waits for its peers, or has nothing to do, leaves the processor alone."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from oracle_model import Residual

from ravnest import clusterize

SCRIPT = str(Path(__file__).parent / "scripts" / "waiting_provider.py")
WINDOW_S = 6.0
MAX_SHARE = 0.02

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def wait_for_file(path: Path, deadline_s: float = 60) -> None:
    """Returns once the file is there."""
    end = time.monotonic() + deadline_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.05)


def processor_share(pid: int) -> float:
    """Share of a core a process uses during the window."""
    process = psutil.Process(pid)
    before = process.cpu_times()
    started = time.monotonic()
    time.sleep(WINDOW_S)  # the length of the measurement
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return used / (time.monotonic() - started)


def test_waiting_and_idle_providers_use_no_processor(
    tmp_path: Path, processes: object, node_configs: Callable[..., Path]
) -> None:
    node_data = node_configs(tmp_path, 3)
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(
            Residual(), (torch.zeros(8, 3, 8, 8),), node_data=node_data, num_clusters=1
        )
    root, stem, leaf = (f"node_{node_id}" for node_id in plan.clusters[0])

    alone = processes.start([SCRIPT, stem], cwd=tmp_path)  # type: ignore[attr-defined]
    wait_for_file(tmp_path / f"ready_{stem}")
    assert processor_share(alone.popen.pid) < MAX_SHARE, "while waiting for its peers"

    idle_leaf = processes.start([SCRIPT, leaf], cwd=tmp_path)  # type: ignore[attr-defined]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    driver = subprocess.Popen(
        [sys.executable, SCRIPT, root], cwd=tmp_path, env=environment, stdin=subprocess.PIPE
    )
    try:
        wait_for_file(tmp_path / "holding")
        assert processor_share(alone.popen.pid) < MAX_SHARE, "idle in the middle of training"
        assert processor_share(idle_leaf.popen.pid) < MAX_SHARE, "idle in the middle of training"
        driver.communicate(b"go on\n", timeout=60)
        assert driver.returncode == 0
    finally:
        driver.kill()
        driver.wait()
    processes.wait_all()  # type: ignore[attr-defined]
