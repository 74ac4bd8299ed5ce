"""Freed tensors leave the process: measured in one of its own, with and without the setting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
import psutil, torch
from ravnest.node.allocator import return_freed_memory
print(return_freed_memory() if sys.argv[1] == "fix" else None)
torch.zeros(24 << 20, dtype=torch.uint8)  # freeing it raises glibc's threshold
before = psutil.Process().memory_info().rss
blocks = [torch.ones(1 << 20, dtype=torch.uint8) for _ in range(200)]
del blocks[:-1]  # the last holds the heap's end in place
print(psutil.Process().memory_info().rss - before)
"""


def left_bytes(choice: str, **environment: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, choice],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    answer, left = done.stdout.split()
    return answer, int(left)


@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_tensors_leave_the_process() -> None:
    answer, left = left_bytes("fix")
    if answer == "False":
        pytest.skip("the C library is no glibc, or the environment sets its own thresholds")
    assert left < 20e6
    assert left_bytes("leave")[1] > 150e6, "without it they stay, or this test shows nothing"
    assert left_bytes("fix", MALLOC_TRIM_THRESHOLD_="1000000000")[0] == "False"
