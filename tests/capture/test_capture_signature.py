"""Calls are bound to the captured graph's inputs, and refused in words when they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from capture_zoo import call, captured
from torch import nn

from ravnest.capture.exporting import capture_model
from ravnest.capture.signature import InputSignature
from ravnest.capture.signature_json import signature_from_data, signature_to_data
from ravnest.capture.strict_json import Field
from ravnest.errors import TrainingError


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long)


def test_positional_and_keyword_are_the_same() -> None:
    signature = captured("gpt").signature
    x, y = ids(4, 6), ids(4, 6)
    for bound in (
        signature.bind((x, y), {}),
        signature.bind((x,), {"targets": y}),
        signature.bind((), {"targets": y, "ids": x}),
    ):
        assert list(bound) == ["input.ids", "input.targets"]
        assert bound["input.ids"] is x
        assert bound["input.targets"] is y


def test_defaults_that_were_baked_are_filled_in() -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor, scale: float = 2.0, mode: str = "a") -> torch.Tensor:
            return super().forward(x) * scale

    x = torch.randn(4, 8)
    signature = capture_model(Scaled(8, 8), (x,)).signature
    assert list(signature.bind((x,), {})) == ["input.x"]
    assert list(signature.bind((x, 2.0), {"mode": "a"})) == ["input.x"]
    with pytest.raises(TrainingError, match=r"'scale': the model was captured with 2\.0, got"):
        signature.bind((x,), {"scale": 3.0})
    other = capture_model(Scaled(8, 8), (x,), {"scale": 3.0}).signature
    with pytest.raises(TrainingError, match=r"captured with 3\.0"):
        other.bind((x,), {})  # the call means 2.0


BAD_CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "rank": ((ids(4, 6)[0], ids(4, 6)), {}, r"'ids': expected torch.int64 of shape .* got .*\[6\]"),
    "dtype": ((ids(4, 6).float(), ids(4, 6)), {}, r"'ids'.*torch.int64.*got torch.float32"),
    "range": ((ids(4, 33), ids(4, 33)), {}, r"<= 32\], got torch.int64 of shape \[4, 33\]"),
    "disagree": (
        (ids(4, 6), ids(3, 6)),
        {},
        r"the condition \(\(d1 \* d0\) == \(d2 \* d3\)\).*d2 = 3 \(input.targets dim 0\)",
    ),
    "missing": ((ids(4, 6),), {}, "'targets'.*got NoneType"),
    "unknown": ((ids(4, 6), ids(4, 6)), {"extra": 1}, r"unknown inputs \['extra'\]"),
    "too_many": ((ids(4, 6), ids(4, 6), 3), {}, "3 positional inputs"),
    "twice": ((ids(4, 6), ids(4, 6)), {"ids": ids(4, 6)}, "'ids' is given twice"),
    "no_tensor": (([1, 2], ids(4, 6)), {}, "'ids'.*got list"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_call_that_does_not_fit_is_refused(name: str) -> None:
    args, kwargs, message = BAD_CALLS[name]
    with pytest.raises(TrainingError, match=message):
        captured("gpt").signature.bind(args, kwargs)


def test_fixed_dimension() -> None:
    with pytest.raises(TrainingError, match=r"of shape \[d0, 8\], got torch.float32 of shape"):
        captured("norm_twice").signature.bind((torch.randn(4, 9),), {})


def test_sizes_that_must_agree() -> None:
    class Adding(nn.Linear):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + super().forward(y)

    signature = capture_model(Adding(8, 8), (torch.randn(4, 8), torch.randn(4, 8))).signature
    with pytest.raises(TrainingError, match=r"input\.x dim 0 is 4 but input\.y dim 0 is 3"):
        signature.bind((torch.randn(4, 8), torch.randn(3, 8)), {})


def test_images_vary_in_batch_only_and_masks_with_their_sequence() -> None:
    signature = captured("cnn").signature
    signature.bind((torch.randn(9, 3, 16, 16),), {})
    with pytest.raises(TrainingError, match=r"\[d0, 3, 16, 16\], got .*\[4, 3, 8, 8\]"):
        signature.bind((torch.randn(4, 3, 8, 8),), {})

    class Masked(nn.Linear):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return mask[:, 0] @ super().forward(x)

    masked = capture_model(Masked(8, 8), (torch.randn(4, 6, 8), torch.randn(4, 1, 6, 6)))
    masked.signature.bind((torch.randn(2, 5, 8), torch.randn(2, 1, 5, 5)), {})


def test_nested_inputs_are_matched_by_key_whatever_the_container() -> None:
    signature = captured("dict").signature
    x, y = torch.randn(3, 8), torch.randn(3, 8)

    class Batch(dict[str, Any]):
        pass

    bound = signature.bind((Batch(more=(y,), x=x),), {"scale": 0.5})
    assert bound["input.batch.x"] is x
    assert bound["input.batch.more.0"] is y
    with pytest.raises(TrainingError, match=r"'batch': expected a dict of \['x', 'more'\]"):
        signature.bind(({"x": x},), {"scale": 0.5})


def test_conditions_between_sizes_are_checked() -> None:
    class Even(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y if x.size(0) % 2 == 0 else y[1:]

    signature = capture_model(Even(8, 8), (torch.randn(4, 8),)).signature
    signature.bind((torch.randn(6, 8),), {})
    with pytest.raises(TrainingError, match="which the inputs break"):
        signature.bind((torch.randn(5, 8),), {})


def test_variadic_inputs() -> None:
    class Summing(nn.Linear):
        def forward(self, *xs: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
            return super().forward(sum(xs) + sum(more.values()))

    x = torch.randn(4, 8)
    signature = capture_model(Summing(8, 8), (x, x), {"a": x, "b": x}).signature
    bound = signature.bind((x, x), {"b": x, "a": x})
    assert list(bound) == ["input.xs.0", "input.xs.1", "input.more.a", "input.more.b"]
    with pytest.raises(TrainingError, match="'xs': expected a tuple"):
        signature.bind((x,), {"b": x, "a": x})


def test_named_tuple_and_record_inputs_reach_the_model() -> None:
    class Pair(NamedTuple):
        first: torch.Tensor
        second: torch.Tensor

    class Adding(nn.Linear):
        def forward(self, pair: Pair) -> torch.Tensor:
            return super().forward(pair.first + pair.second)

    x = torch.randn(4, 8)
    signature = capture_model(Adding(8, 8), (Pair(x, x),)).signature
    assert list(signature.bind(((x, x),), {})) == ["input.pair.0", "input.pair.1"]


def test_a_batch_of_one_is_tiled_but_costs_are_for_one() -> None:
    model = nn.Linear(8, 4)
    one = capture_model(model, (torch.randn(1, 8),))
    two = capture_model(model, (torch.randn(2, 8),))
    one.signature.bind((torch.randn(7, 8),), {})
    assert one.signature == two.signature
    assert one.costs.forward_flops[0] * 2 == two.costs.forward_flops[0]


@pytest.mark.parametrize("name", ["gpt", "dict", "several", "mlp"])
def test_json_round_trip(name: str) -> None:
    signature = captured(name).signature
    data = json.loads(json.dumps(signature_to_data(signature), allow_nan=False))
    again: InputSignature = signature_from_data(Field(Path("x"), "", data))
    assert again == signature
    again.bind(*call(name, 3))
