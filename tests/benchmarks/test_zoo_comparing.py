"""The zoo's own measure sees every kind of difference."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.zoo.comparing import difference

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
