"""An operator that a library puts in for a compiler's sake becomes the one that torch has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from capture_chain import assert_same, even_cuts, through_files, train_chain, train_original
from torch import nn
from torch.library import _scoped_library

from ravnest.capture.exporting import capture_model


@pytest.fixture
def grouped_mm_fallback() -> Iterator[None]:
    """The operator as transformers registers it: the same product, known to nobody else."""
    if hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        pytest.skip("transformers itself is imported")
    with _scoped_library("transformers", "DEF") as library:
        library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")

        def product(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return x.new_empty(x.shape[0], weight.shape[2])

        library.impl("grouped_mm_fallback", product, "CompositeExplicitAutograd")
        yield


class Grouped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inlet = nn.Linear(16, 16)
        self.weight = nn.Parameter(torch.randn(2, 16, 16) / 4)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        x = self.inlet(x)
        if torch.compiler.is_compiling():
            x = torch.ops.transformers.grouped_mm_fallback(x, self.weight, offs=ends)
        else:
            x = torch.nn.functional.grouped_mm(x, self.weight, offs=ends)
        return self.head(torch.tanh(x))


@pytest.mark.usefixtures("grouped_mm_fallback")
def test_grouped_products_of_transformers_run_without_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Grouped()
    ends = torch.tensor([2, 4], dtype=torch.int32)
    captured = capture_model(model, (torch.randn(4, 16), ends))
    targets = [str(node.target) for node in captured.train.computing]
    position = targets.index("aten._grouped_mm.default")
    assert captured.costs.forward_flops[position] == 2 * 4 * 16 * 16
    assert captured.costs.output_bytes[position] == 4 * 16 * 4
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    x = torch.randn(4, 16)
    actual = train_chain(through_files(captured, even_cuts(captured, 2)), (x, ends), {})
    expected = train_original(model, captured, (x, ends), {})
    assert_same(actual.output, expected.output)
    assert_same(actual.gradients, {n: expected.gradients[n] for n in actual.gradients})


@pytest.mark.parametrize("ends", [[2, 4], [4, 2], [-3, 5], [3, 99], [0, 0]])
def test_rows_of_no_group_are_zero_and_get_no_gradient(ends: list[int]) -> None:
    class Partial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inlet = nn.Linear(16, 16)
            self.weight = nn.Parameter(torch.randn(2, 16, 16))

        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.grouped_mm(self.inlet(x), self.weight, offs=ends)

    example = torch.tensor([2, 8], dtype=torch.int32)
    model = Partial().to(torch.bfloat16)  # torch traces this operator in no other dtype
    captured = capture_model(model, (torch.randn(8, 16, dtype=torch.bfloat16), example))
    stages = through_files(captured, even_cuts(captured, 2))
    last = min(max(*ends, 0), 8)
    for _ in range(3):
        x = torch.randn(8, 16, dtype=torch.bfloat16)
        secrets = [torch.full_like(x, 1234.0) for _ in range(8)]
        del secrets  # what an unfilled result is made of
        call = (x, torch.tensor(ends, dtype=torch.int32))
        result = train_chain(stages, call, {})
        assert not result.output[last:].any()
        for gradient in result.gradients.values():
            assert gradient.abs().max() < 100
