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
from ravnest.node.allocator import keep_freed_memory, return_freed_memory
from ravnest.transport.grpc_transport import GrpcTransport
choices = {"return": return_freed_memory, "keep": keep_freed_memory, "leave": lambda: None}
print(choices[sys.argv[1]]())
transport = GrpcTransport(0, "127.0.0.1:0", [], "0" * 64)
transport.start()  # leaves the choice alone
transport.close()
if sys.argv[1] != "keep":
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
    answer, left = left_bytes("return")
    if answer == "False":
        pytest.skip("the C library is no glibc, or the environment sets its own thresholds")
    assert left < 20e6
    assert left_bytes("leave")[1] > 150e6, "without it they stay, or this test shows nothing"
    answer, kept = left_bytes("keep")
    assert answer == "True"
    assert kept > 150e6, "to keep memory means the opposite"
    assert left_bytes("return", MALLOC_TRIM_THRESHOLD_="1000000000")[0] == "False"
