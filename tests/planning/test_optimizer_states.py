"""What optimizers keep and need, asked without values, against what they really allocate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ravnest.errors import ConfigError
from ravnest.planning.budget.optimizer_states import ask_optimizer

SHAPES = ((64, 32), (64,), (128, 64), (128, 64))
PARAMETERS = [torch.empty(shape, device="meta") for shape in SHAPES]
optim = torch.optim


def adamw_of(params: Any, lr: float) -> torch.optim.Optimizer:
    """A function, with a group of its own."""
    return optim.AdamW([{"params": params, "weight_decay": 0.1}], lr=lr)


class ReadsValues(optim.SGD):
    """Cannot step without values."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for each in group["params"]:
                if float(each.grad.norm()) >= 0:
                    self.state[each].setdefault("seen", torch.zeros_like(each)).add_(each.grad)


class KeepsApart(optim.SGD):
    """Has a state that is not in `state`."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.slow = [each.detach().clone() for each in self.param_groups[0]["params"]]


@pytest.mark.parametrize(
    ("optimizer", "params", "states"),
    [
        (optim.SGD, {"lr": 0.1}, 0),
        (optim.SGD, {"lr": 0.1, "momentum": 0.9}, 1),
        (optim.Adam, {}, 2),
        (optim.AdamW, {"foreach": True}, 2),
        (optim.Adam, {"amsgrad": True}, 3),
        (optim.RMSprop, {}, 1),
        (optim.Adagrad, {}, 1),
        (adamw_of, {"lr": 0.1}, 2),
        (ReadsValues, {"lr": 0.1}, 1),
        (KeepsApart, {"lr": 0.1}, 1),
    ],
)
def test_states_per_byte_of_parameter(optimizer: Any, params: Any, states: float) -> None:
    cost = ask_optimizer(optimizer, params, PARAMETERS)
    assert cost.state_bytes == pytest.approx(states)
    assert cost.tensor_bytes <= 16


def test_states_that_depend_on_the_shape_are_those_of_a_real_step() -> None:
    real = [torch.nn.Parameter(torch.rand(shape)) for shape in SHAPES]
    for each in real:
        each.grad = torch.rand_like(each)
    made = optim.Adafactor(real)
    made.step()
    kept = sum(t.nbytes for s in made.state.values() for t in s.values() if t.numel() > 1)
    cost = ask_optimizer(optim.Adafactor, {}, PARAMETERS)
    assert cost.state_bytes == pytest.approx(kept / sum(each.nbytes for each in real))


def test_temporaries_of_a_step() -> None:
    one_by_one = ask_optimizer(optim.Adam, {}, PARAMETERS)
    # A root and a quotient of this parameter, and the quotient of the one before.
    assert (one_by_one.step_bytes, one_by_one.joint_step_bytes) == (3, 0)
    together = ask_optimizer(optim.Adam, {"foreach": True}, PARAMETERS)
    assert (together.step_bytes, together.joint_step_bytes) == (0, 1)
    assert one_by_one.accelerator_step_bytes == together.accelerator_step_bytes == 1
    assert ask_optimizer(optim.SGD, {}, PARAMETERS).step_bytes == 0


def test_nothing_to_train_costs_nothing() -> None:
    assert ask_optimizer(optim.Adam, {}, []).state_bytes == 0


@pytest.mark.parametrize(
    ("optimizer", "params", "why"),
    [
        (optim.LBFGS, {}, r"LBFGS cannot be asked what it keeps.*closure"),
        (optim.SparseAdam, {}, r"SparseAdam cannot be asked.*dense gradients"),
        (optim.Adam, {"rate": 1}, r"Adam cannot be asked.*rate"),
        (lambda params: None, {}, r"cannot be asked.*NoneType"),
    ],
)
def test_what_cannot_be_asked_is_refused(optimizer: Any, params: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        ask_optimizer(optimizer, params, PARAMETERS)
    assert caught.value.hint is not None
    assert "optimizer_states=2" in caught.value.hint
