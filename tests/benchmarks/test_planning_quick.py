"""The planning benchmark still runs; its figures are not judged here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_short_form_reports_every_claim() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.planning", "--json", "--quick"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert finished.returncode in (0, 1), finished.stderr
    report = json.loads(finished.stdout)
    assert [row["nodes"] for row in report["small"]] == [3, 5, 7]
    assert all(row["planned / best"] > 0.998 for row in report["small"])
    names = " ".join(claim["name"] for claim in report["claims"])
    for word in ("exhaustive", "upper bound", "seconds", "equal split", "empty", "differs"):
        assert word in names
