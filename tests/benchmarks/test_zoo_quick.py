"""The short form of the zoo holds its claims on torch alone, and a broken row is a failed claim."""

from __future__ import annotations

import pytest
from quick_form import run_benchmark


@pytest.mark.processes
def test_quick_rows_hold() -> None:
    code, report = run_benchmark("zoo", "--quick")
    assert [claim for claim in report["claims"] if not claim["holds"]] == []
    assert code == 0
    assert len(report["rows"]) >= 4
    for row in report["rows"].values():
        assert row["stages"][0] == 1
        assert len(row["stages"]) > 1
        assert set(row["differences"]) >= {"output", "gradients", "buffers", "other batch"}


@pytest.mark.processes
def test_a_row_that_fails_is_a_failed_claim_with_its_first_line() -> None:
    code, report = run_benchmark("zoo", "--rows", "no such model")
    (claim,) = report["claims"]
    (row,) = report["rows"].values()
    assert code == 1
    assert not claim["holds"]
    assert "KeyError" in row["failures"][0]
