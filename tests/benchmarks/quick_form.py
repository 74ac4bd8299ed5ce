"""Runs a benchmark as a user would, for the tests of its short form."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]


def run_benchmark(name: str, *arguments: str, timeout_s: float = 110) -> tuple[int, dict[str, Any]]:
    """`python -m benchmarks.NAME --json`: its exit code, and the object it printed."""
    finished = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--json", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert finished.returncode in (0, 1), finished.stderr
    return finished.returncode, json.loads(finished.stdout)
