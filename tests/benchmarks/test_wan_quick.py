"""The benchmark of slow links still runs; its figures are not judged here."""

from __future__ import annotations

import pytest
from quick_form import run_benchmark

from benchmarks.links import why_impossible
from benchmarks.waits import HEAVY_LEAVES, WAIT_VARIABLE
from benchmarks.workloads import WORKLOADS

REASON = why_impossible()


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.timeout(240)
@pytest.mark.processes
def test_the_short_form_reports_every_figure() -> None:
    _, report = run_benchmark("wan", "--quick", timeout_s=220)
    (found,) = report["pipelines"].values()
    assert found["ravnest 1f1b"]["step_s"] > 0
    assert found["torch 1f1b"]["loss"] == pytest.approx(found["ravnest 1f1b"]["loss"], rel=1e-4)
    assert abs(report["losses"]["behind"]) < 0.5
    assert len(report["claims"]) == 3


def test_stages_wait_as_their_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT_VARIABLE, "0.003")
    model = WORKLOADS["heavy waits"]().build()
    assert {stage._total_s for stage in model} == {0.003}
    assert len(HEAVY_LEAVES) == len(model)
