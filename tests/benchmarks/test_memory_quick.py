"""The short form of the memory benchmark holds its claims, with real providers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.processes
def test_the_short_form_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--json", "--quick"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    report = json.loads(done.stdout)
    assert len(report["cases"]) == len(report["claims"]) == 2
    for rows in report["cases"].values():
        assert len(rows) == 2
        for row in rows:
            assert sum(row["parts"].values()) == row["predicted_bytes"]
            assert row["measured"]["peak_bytes"] > 200e6
    assert [claim for claim in report["claims"] if not claim["holds"]] == []
