"""The pipeline benchmark still runs; its figures are not judged here."""

from __future__ import annotations

import pytest
from quick_form import run_benchmark


@pytest.mark.timeout(180)
@pytest.mark.processes
def test_the_short_form_reports_every_figure() -> None:
    _, report = run_benchmark("pipeline", "--quick", timeout_s=170)
    assert {"one process", "torch 1f1b", "ravnest 1f1b", "ravnest async"} <= report["digits"].keys()
    assert len(report["claims"]) == 4
    assert {"name", "value", "goal", "holds"} <= set(report["claims"][0])
