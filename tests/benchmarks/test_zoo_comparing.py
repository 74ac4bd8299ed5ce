"""The zoo's own measure sees every kind of difference."""

from __future__ import annotations

import importlib
import math

import pytest
import torch

from benchmarks.zoo.comparing import difference
from benchmarks.zoo.registry import QUICK, ROWS, all_names

BASE = {"a": torch.tensor([1.0, -4.0]), "b": [torch.tensor([3, 4]), None, 2]}


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.tensor([1.0, -4.0])},
        {"a": torch.tensor([1.0, -4.0], dtype=torch.float64), "b": BASE["b"]},
        {"a": torch.tensor([[1.0, -4.0]]), "b": BASE["b"]},
        {"a": torch.tensor([1.0, math.nan]), "b": BASE["b"]},
        {"a": BASE["a"], "b": [torch.tensor([3, 5]), None, 2]},
        {"a": BASE["a"], "b": [torch.tensor([3, 4]), None, 3]},
    ],
)
def test_what_must_not_differ_is_infinitely_apart(other: object) -> None:
    assert difference(other, BASE) == math.inf


def test_floats_are_measured_by_the_largest_value_of_their_tensor() -> None:
    assert difference(BASE, BASE) == 0
    other = {"a": torch.tensor([1.0, -4.4]), "b": BASE["b"]}
    assert difference(other, BASE) == pytest.approx(0.1, rel=1e-5)


def test_rounding_of_a_vanishing_tensor_is_measured_by_the_others() -> None:
    actual = {"bias": torch.tensor([2e-9]), "weight": torch.tensor([1.0])}
    expected = {"bias": torch.tensor([1e-9]), "weight": torch.tensor([1.0])}
    assert difference(actual, expected) == pytest.approx(1e-6, rel=1e-3)


@pytest.mark.parametrize("module", ["plain", "language", "special"])
def test_the_registry_lists_what_the_files_have(module: str) -> None:
    path = f"benchmarks.zoo.{module}"
    entries = importlib.import_module(path).ENTRIES
    assert tuple(entry.name for entry in entries) == ROWS[path]
    assert set(QUICK) <= set(all_names())
