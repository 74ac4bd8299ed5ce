"""The benchmark of unequal nodes still runs; its figures are not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(180)
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="throttles through Linux's clocks")
def test_the_short_form_reports_every_figure() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.unequal", "--json", "--quick"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert finished.returncode in (0, 1), finished.stderr
    report = json.loads(finished.stdout)
    planned, equal = report["planned async"], report["equal async"]
    assert planned["samples_per_s"] > 0
    assert equal["samples_per_s"] > 0
    # The planner really was told of unequal nodes, and the processes really were slowed down.
    assert max(planned["work_shares"]) > max(equal["work_shares"])
    assert all(0 < speed < 1 for speed in report["speeds"])
    assert {"measured", "repeats", "model"} <= report["ratio async"].keys()
    assert all({"name", "value", "goal", "holds"} <= claim.keys() for claim in report["claims"])
