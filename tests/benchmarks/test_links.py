"""Emulated links: as asked, and nothing of them left behind. Skipped where there can be none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.links import MAX_ERROR, Access, LinkCheck, Network, why_impossible

REPOSITORY = Path(__file__).resolve().parents[2]
REASON = why_impossible()
needs_root = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def test_the_error_of_a_link_is_its_worse_one() -> None:
    assert LinkCheck(90e6, 0.04, 100e6, 0.04).error == pytest.approx(0.1)
    assert LinkCheck(100e6, 0.0445, 100e6, 0.04).error == pytest.approx(0.1)
    # The relay takes some time of its own, which a fast link would be blamed for.
    assert LinkCheck(100e6, 0.0014, 100e6, 0.001).error == 0


@needs_root
@pytest.mark.processes
def test_hosts_reach_each_other_through_the_relay_alone() -> None:
    with Network([Access(50e6, 0.005), Access(20e6, 0.015)]) as network:
        check = network.check(0, 1, seconds=0.5)
        assert check.asked_rate_bps == 20e6
        assert check.asked_round_trip_s == pytest.approx(0.04)
        # Loose, for a busy machine: how exact it is the benchmark says.
        assert check.rate_bps < 20e6 * (1 + MAX_ERROR)
        assert check.round_trip_s > 0.04
        loopback = network.command(0, ["ip", "-j", "link"])
        found = json.loads(subprocess.run(loopback, stdout=subprocess.PIPE, check=True).stdout)
        assert len(found) == 2
    left = subprocess.run(["ip", "netns"], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert not [name for name in network._names if name in left]


@needs_root
def test_a_failure_inside_leaves_nothing_behind() -> None:
    network = Network([Access(50e6, 0.005)] * 2)
    with pytest.raises(ZeroDivisionError), network:
        raise ZeroDivisionError
    left = subprocess.run(["ip", "netns"], stdout=subprocess.PIPE, check=True, text=True).stdout
    assert not [name for name in network._names if name in left]


@pytest.mark.timeout(240)
@pytest.mark.processes
def test_the_short_form_of_the_benchmark_reports_every_figure() -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.prediction", "--json", "--quick"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    if REASON is not None:
        assert finished.returncode == 2
        assert f"no real runs over links here: {REASON}" in finished.stderr
        return
    assert finished.returncode in (0, 1), finished.stderr
    report = json.loads(finished.stdout)
    (plan,) = report["plans"]
    assert min(plan[f"{kind}_step_s"] for kind in ("predicted", "simulated", "real")) > 0
    assert [set(claim) for claim in report["claims"]] == [{"name", "value", "goal", "holds"}] * 3
