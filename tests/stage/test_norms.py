"""Norms of gradients, joined from parts, against torch's over everything at once."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ravnest.stage.norms import GradientNorms, clip, gradient_norms, joined

TYPES = st.sampled_from([0.5, 1.0, 2.0, 3.0, 10.0, math.inf])


@given(st.lists(st.floats(0, 1e30), max_size=6), TYPES)
def test_joining_is_the_norm_of_the_norms(parts: list[float], norm_type: float) -> None:
    vector = torch.tensor(parts, dtype=torch.float64)
    expected = torch.linalg.vector_norm(vector, norm_type) if parts else torch.zeros(())
    assert joined(parts, norm_type) == pytest.approx(float(expected), rel=1e-9)


@given(st.permutations([1.0, math.nan, math.inf, 0.0]), TYPES)
def test_what_is_no_number_stays_none(parts: list[float], norm_type: float) -> None:
    assert math.isnan(joined(parts, norm_type))
    assert joined([p for p in parts if not math.isnan(p)], norm_type) == math.inf


def test_large_norms_do_not_overflow() -> None:
    assert joined([1e200, 1e200], 2.0) == pytest.approx(math.sqrt(2) * 1e200)


def _norms(parameters: dict[str, torch.nn.Parameter], norm_type: float) -> GradientNorms:
    return gradient_norms(parameters, {name: int(name) for name in parameters}, norm_type)


def gradient_norm(parameters: dict[str, torch.nn.Parameter], norm_type: float) -> float:
    return _norms(parameters, norm_type).total(norm_type)


def _parameters(*dtypes: torch.dtype) -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(0)
    made = {
        f"{index}": torch.nn.Parameter(torch.randn(3, 4 + index).to(dtype))
        for index, dtype in enumerate(dtypes)
    }
    for each in made.values():
        each.grad = torch.randn(each.shape).to(each.dtype)
    return made


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float32),
        (torch.float64,),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32, torch.float64),
    ],
    ids=str,
)
def test_every_dtype_is_summed_as_in_one_process(
    dtypes: tuple[torch.dtype, ...], norm_type: float
) -> None:
    parameters = _parameters(*dtypes)
    gradients = [each.grad for each in parameters.values() if each.grad is not None]
    expected = torch.nn.utils.get_total_norm(gradients, norm_type)
    found = gradient_norm(parameters, norm_type)
    if len(set(dtypes)) == 1:
        assert found == float(expected)
    everything = torch.cat([each.double().flatten() for each in gradients])
    exact = float(torch.linalg.vector_norm(everything, norm_type))
    # In bfloat16 each norm is rounded, and that of them all.
    assert found == pytest.approx(exact, rel=8e-3 if torch.bfloat16 in dtypes else 1e-6)
    clip(parameters, found, 0.25, _norms(parameters, norm_type).dtype)
    assert gradient_norm(parameters, norm_type) == pytest.approx(0.25, rel=1e-2)
    assert [each.grad.dtype for each in parameters.values()] == list(dtypes)  # type: ignore[union-attr]


@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_norms_of_parts_have_the_bits_of_one_process(dtype: torch.dtype, norm_type: float) -> None:
    """However the parameters are dealt to stages, and in whatever order these report."""
    parameters = _parameters(*[dtype] * 50)
    gradients = [each.grad for each in parameters.values() if each.grad is not None]
    expected = float(torch.nn.utils.get_total_norm(gradients, norm_type))
    for parts in (1, 2, 7):
        stages = [dict(list(parameters.items())[part::parts]) for part in range(parts)]
        known = _norms({}, norm_type)
        for stage in reversed(stages):
            known = _norms(stage, norm_type).and_those_of(known)
        assert known.total(norm_type) == expected
        assert known.dtype is dtype


def test_a_norm_of_norms_that_overflows_is_taken_another_way() -> None:
    norms = GradientNorms({0: 3e30, 1: 4e30}, torch.float32)
    assert norms.total(2.0) == pytest.approx(5e30)
    assert math.isnan(GradientNorms({0: 1.0, 1: math.nan}, torch.float32).total(2.0))


def test_sparse_and_absent_gradients() -> None:
    embedding = torch.nn.Embedding(7, 3, sparse=True)
    embedding(torch.tensor([1, 1, 5])).square().sum().backward()
    gradient = embedding.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    parameters = {"0": embedding.weight, "1": torch.nn.Parameter(torch.ones(2))}
    norm = gradient_norm(parameters, 2.0)
    assert norm == pytest.approx(float(gradient.to_dense().norm()))
    clip(parameters, norm, norm / 2, torch.float32)
    assert embedding.weight.grad is not None
    assert float(embedding.weight.grad.to_dense().norm()) == pytest.approx(norm / 2, rel=1e-5)
    assert gradient_norm({"1": parameters["1"]}, 2.0) == 0.0


def test_half_precision_does_not_overflow() -> None:
    parameters = _parameters(torch.float16)
    parameters["0"].grad = torch.full((3, 4), 6e4, dtype=torch.float16)
    norm = gradient_norm(parameters, 2.0)
    assert norm == pytest.approx(6e4 * math.sqrt(12), rel=1e-3)
    clip(parameters, norm, 1.0, _norms(parameters, 2.0).dtype)
    assert gradient_norm(parameters, 2.0) == pytest.approx(1.0, rel=1e-2)
