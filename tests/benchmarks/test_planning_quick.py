"""The planning benchmark still runs; its figures are not judged here."""

from __future__ import annotations

from quick_form import run_benchmark


def test_the_short_form_reports_every_claim() -> None:
    _, report = run_benchmark("planning", "--quick")
    assert [row["nodes"] for row in report["small"]] == [3, 5, 7]
    assert all(row["planned / best"] > 0.998 for row in report["small"])
    names = " ".join(claim["name"] for claim in report["claims"])
    for word in ("exhaustive", "upper bound", "seconds", "equal split", "empty", "differs"):
        assert word in names
