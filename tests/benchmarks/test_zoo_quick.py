"""The short form of the zoo holds its claims on torch alone, and a broken row is a failed claim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def run_zoo(*arguments: str) -> tuple[int, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.zoo", "--json", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


@pytest.mark.processes
def test_quick_rows_hold() -> None:
    code, report = run_zoo("--quick")
    assert [claim for claim in report["claims"] if not claim["holds"]] == []
    assert code == 0
    assert len(report["rows"]) >= 4
    for row in report["rows"].values():
        assert row["stages"][0] == 1
        assert len(row["stages"]) > 1
        assert set(row["differences"]) >= {"output", "gradients", "buffers", "other batch"}


@pytest.mark.processes
def test_a_row_that_fails_is_a_failed_claim_with_its_first_line() -> None:
    code, report = run_zoo("--rows", "no such model")
    (claim,) = report["claims"]
    (row,) = report["rows"].values()
    assert code == 1
    assert not claim["holds"]
    assert "KeyError" in row["failures"][0]
