"""The short form of the oracle holds its claims, and can fail."""

from __future__ import annotations

import math

import pytest
import torch
from quick_form import run_benchmark

from benchmarks.oracle.cases import CASES, epochs_of
from benchmarks.oracle.outcome import Outcome, differences
from benchmarks.oracle.plain import train_plainly
from benchmarks.zoo.registry import find


@pytest.mark.processes
def test_the_short_form_holds() -> None:
    code, report = run_benchmark("oracle", "--quick")
    assert [claim for claim in report["claims"] if not claim["holds"]] == []
    assert code == 0
    (row,) = report["rows"].values()
    for found in row["cases"].values():
        assert found["steps"] == 20
        assert found["stages"] == [1, 2, 3, 4, 5]
        assert found["loss"][1] < found["loss"][0]
        assert set(found["differences"]) >= {"1f1b"}


def test_another_way_of_training_is_seen() -> None:
    entry = find("MLP")
    plain, clipped = (train_plainly(entry, case, epochs_of(entry, case)) for case in CASES[:2])
    apart = differences(clipped, plain, relative=False)
    assert all(apart[quantity] > 1e-3 for quantity in ("losses", "gradients", "weights"))


@pytest.mark.parametrize("relative", [True, False])
def test_what_is_missing_or_of_another_kind_is_far_apart(relative: bool) -> None:
    one = Outcome(weights={"a": torch.ones(2), "b": torch.arange(3)})
    for other in ({"a": torch.ones(2)}, {**one.weights, "b": torch.arange(3).flip(0)}):
        found = differences(Outcome(weights=other), one, relative=relative)
        assert found["weights"] >= (1.0 if not relative else math.inf)
    assert set(differences(one, one, relative=relative).values()) == {0.0}
