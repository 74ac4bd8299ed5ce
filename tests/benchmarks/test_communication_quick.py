"""The communication benchmark still runs; its losses are not judged here, its bytes are."""

from __future__ import annotations

from quick_form import run_benchmark


def test_the_short_form_reports_every_setting() -> None:
    _, report = run_benchmark("communication", "--quick")
    four, eight = report["4 bits, every 100 steps"], report["8 bits, every 100 steps"]
    # Bytes depend on nothing but the number of steps.
    assert four["times_fewer_bytes"] > 680
    assert 385 < eight["times_fewer_bytes"] < 400
    holds = [claim["holds"] for claim in report["claims"] if "fewer" in claim["name"]]
    assert holds == [False, True], "8 bits and a scale cannot be 400 times fewer"
