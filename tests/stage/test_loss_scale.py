"""The scale of losses follows `torch.amp.GradScaler`."""

from __future__ import annotations

import random

import pytest
import torch

from ravnest.errors import TrainingError
from ravnest.stage.precision import LossScale


def test_a_dynamic_scale_moves_as_torchs() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler, ours = torch.amp.GradScaler("cpu"), LossScale("dynamic")
    scaler.scale(torch.zeros(1))  # it makes its state lazily
    overflows = {0, 1, 700, 2800, 2801, 4900}
    for step in range(9000):
        is_finite = step not in overflows
        parameter.grad = torch.tensor([1.0 if is_finite else float("inf")])
        scaler.step(optimizer)
        scaler.update()
        ours.update(is_finite=is_finite)
        assert ours.value == scaler.get_scale(), step


def test_a_constant_scale_stays() -> None:
    ours = LossScale(128)
    for _ in range(100):
        ours.update(is_finite=random.random() < 0.5)
    assert ours.value == 128.0


def test_a_scale_that_only_falls_ends_in_an_error() -> None:
    ours = LossScale("dynamic")
    for _ in range(26):
        ours.update(is_finite=False)
    with pytest.raises(TrainingError, match=r"a loss scale of 0\.000488281"):
        ours.update(is_finite=False)
