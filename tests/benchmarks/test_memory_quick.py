"""The short form of the memory benchmark holds its claims, with real providers."""

from __future__ import annotations

import pytest
from quick_form import run_benchmark


@pytest.mark.processes
def test_the_short_form_holds() -> None:
    _, report = run_benchmark("memory", "--quick")
    assert len(report["cases"]) == len(report["claims"]) == 2
    for rows in report["cases"].values():
        assert len(rows) == 2
        for row in rows:
            assert sum(row["parts"].values()) == row["predicted_bytes"]
            assert row["measured"]["peak_bytes"] > 200e6
    assert [claim for claim in report["claims"] if not claim["holds"]] == []
