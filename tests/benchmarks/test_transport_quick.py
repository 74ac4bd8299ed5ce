"""The transport benchmark still runs; its figures are not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.links import why_impossible

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.processes
def test_the_short_form_reports_every_figure() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.transport", "--json", "--quick"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode in (0, 1), finished.stderr
    report = json.loads(finished.stdout)
    assert report["rates"].keys() == {"64 MiB", "16 MiB"}
    for rates in report["rates"].values():
        assert all(rates[kind]["gb_per_s"] > 0 for kind in ("raw", "bare", "ravnest", "tls"))
    assert report["round_trip_us"]["ravnest"] > 0
    has_link = why_impossible() is None
    assert ("link" in report) is has_link
    assert len(report["claims"]) == (9 if has_link else 7)
