"""The averaging benchmark still runs; its figures are not judged here, but results are alike."""

from __future__ import annotations

import pytest
from quick_form import run_benchmark

from benchmarks.links import why_impossible


@pytest.mark.timeout(240)
@pytest.mark.processes
def test_the_short_form_of_averaging_reports_every_figure() -> None:
    _, report = run_benchmark("averaging", "--quick", timeout_s=220)
    (row,) = report["loopback"].values()
    assert min(row[f"{kind}_s"] for kind in ("raw", "gloo", "ravnest")) > 0
    assert "--hivemind" in report["no_hivemind"]
    assert report["failing"]["num_rounds"] == 8
    claims = {claim["name"]: claim for claim in report["claims"]}
    if (reason := why_impossible()) is not None:
        assert report["no_links"] == reason
        assert len(claims) == 3
        return
    (row,) = report["links"].values()
    assert min(row[f"{kind}of_bound"] for kind in ("", "raw_", "gloo_", "steady_")) > 0
    assert len(claims) == 9
    assert all(claim["holds"] for name, claim in claims.items() if "different results" in name)
    assert claims["times fewer bytes with int8, 2 members, 1 MB"]["holds"]
