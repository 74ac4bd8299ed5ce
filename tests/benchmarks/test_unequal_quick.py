"""The benchmark of unequal nodes still runs; its figures are not judged here."""

from __future__ import annotations

import sys

import pytest
from quick_form import run_benchmark


@pytest.mark.timeout(180)
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="throttles through Linux's clocks")
def test_the_short_form_reports_every_figure() -> None:
    _, report = run_benchmark("unequal", "--quick", timeout_s=170)
    planned, equal = report["planned async"], report["equal async"]
    assert planned["samples_per_s"] > 0
    assert equal["samples_per_s"] > 0
    # The planner really was told of unequal nodes, and the processes really were slowed down.
    assert max(planned["work_shares"]) > max(equal["work_shares"])
    assert all(0 < speed < 1 for speed in report["speeds"])
    assert {"measured", "repeats", "model"} <= report["ratio async"].keys()
    assert all({"name", "value", "goal", "holds"} <= claim.keys() for claim in report["claims"])
