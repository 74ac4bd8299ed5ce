"""How a batch becomes inputs when the script does not say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ravnest.errors import TrainingError
from ravnest.trainer.batches import split_batch

X, Y, Z = torch.zeros(2), torch.ones(2), torch.ones(3)


@pytest.mark.parametrize(
    ("batch", "names", "expected"),
    [
        (X, ["x"], ((X,), {})),
        ((X, Y), ["x"], ((X,), {})),
        ([X, Y], ["x"], ((X,), {})),
        ((X,), ["x"], ((X,), {})),
        ((X, Y, Z), ["a", "b"], ((X, Y), {})),
        ((X, Y), ["a", "b"], ((X,), {})),
        ({"ids": X, "labels": Y}, ["ids", "mask"], ((), {"ids": X})),
        ({"ids": X, "labels": Y}, ["ids", "labels"], ((), {"ids": X, "labels": Y})),
    ],
)
def test_usual_forms(batch: Any, names: list[str], expected: Any) -> None:
    args, kwargs = split_batch(batch, names)
    assert [id(value) for value in args] == [id(value) for value in expected[0]]
    assert {k: id(v) for k, v in kwargs.items()} == {k: id(v) for k, v in expected[1].items()}


def test_an_unknown_form_says_what_to_override() -> None:
    with pytest.raises(TrainingError, match=r"override Trainer\.inputs_of"):
        split_batch({"image": X}, ["x"])
    with pytest.raises(TrainingError, match="a batch of type str has no known form"):
        split_batch("text", ["x"])
