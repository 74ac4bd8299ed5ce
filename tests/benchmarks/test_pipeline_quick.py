"""The pipeline benchmark still runs; its figures are not judged here."""

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
def test_the_short_form_reports_every_figure() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.pipeline", "--json", "--quick"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert finished.returncode in (0, 1), finished.stderr
    report = json.loads(finished.stdout)
    assert {"one process", "torch 1f1b", "ravnest 1f1b", "ravnest async"} <= report["digits"].keys()
    assert [set(claim) for claim in report["claims"]] == [{"name", "value", "goal", "holds"}]
