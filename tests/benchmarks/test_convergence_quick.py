"""The convergence benchmark still runs; its losses are not judged here."""

from __future__ import annotations

from quick_form import run_benchmark

from benchmarks.convergence.__main__ import ROWS
from benchmarks.convergence.tasks import TASKS


def test_the_short_form_reports_every_row() -> None:
    _, report = run_benchmark("convergence", "--quick")
    for task in TASKS:
        assert set(report[task]["adamw"]) == {"1f1b", *(row.name for row in ROWS)}
    judged = [row for row in ROWS if row.goal is not None]
    assert len(report["claims"]) == len(judged) * len(TASKS) + 1
    assert report["time"]["step_time_ratio_by_microbatches"]["1"] < 0.8
