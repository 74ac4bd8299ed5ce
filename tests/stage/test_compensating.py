"""Delay compensation: its arithmetic against plain recursions, and the stability it is for."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ravnest.errors import ConfigError
from ravnest.stage.compensating import Compensation, Compensator, without_momentum
from ravnest.stage.delays import DelayCompensation, compensation_of, mean_delay
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule
from ravnest.stage.updating import Updater, UpdateSettings

METHODS = [method for method in DelayCompensation if method is not DelayCompensation.OFF]


class OwnSign(torch.optim.Optimizer):
    """An optimizer that nobody knows: a fixed step against the sign of the gradient."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.sub_(group["lr"] * parameter.grad.sign())


def steps_of(compensation: Compensation, gradients: list[float], lr: float = 1.0) -> list[float]:
    """The weight after each step of SGD with these gradients, from 0 on."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=lr)
    compensator = Compensator({"weight": weight}, compensation)
    path = []
    for gradient in gradients:
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        compensator.step(optimizer)
        path.append(weight.item())
    return path


@given(
    gradients=st.lists(st.floats(-2, 2), min_size=1, max_size=30),
    memory=st.sampled_from([0.0, 0.5, 0.9, 0.98]),
    horizon=st.floats(0, 12),
)
def test_changes_are_averaged_and_looked_ahead(
    gradients: list[float], memory: float, horizon: float
) -> None:
    expected, weight, average = [], 0.0, 0.0
    for number, gradient in enumerate(gradients, 1):
        share = max(1 - memory, 1 / number) if memory else 1.0
        before, average = average, (1 - share) * average - share * gradient
        gained = average - before if number > 1 else 0.0
        weight += average + horizon * gained
        expected.append(weight)
    assert steps_of(Compensation(memory, horizon, 1.0), gradients) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.bfloat16, 0.05), (torch.float32, 1e-5), (torch.float64, 1e-12)],
)
def test_values_that_somebody_keeps_are_as_good_as_a_copy(
    dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    rule = Compensation(0.98, 5.0, 1.0, replaces_momentum=True, warm_up_steps=3)
    pairs = [torch.nn.Parameter(torch.randn(40, 30).to(dtype)) for _ in range(2)]
    pairs[1].data.copy_(pairs[0].data)
    average, weight = torch.zeros(()).double(), pairs[0].detach().clone().double()
    optimizers = [torch.optim.SGD([each], lr=0.1, momentum=0.9) for each in pairs]
    compensators = [Compensator({"weight": each}, rule) for each in pairs]
    for number in range(5):
        gradient = torch.randn(40, 30).to(dtype)
        for each in pairs:
            each.grad = gradient.clone()
        compensators[0].step(optimizers[0])
        compensators[1].step(optimizers[1], {"weight": pairs[1].detach().clone()})
        assert torch.equal(*pairs)
        gained = (-gradient.double() - average) / (number + 1)
        average = average + gained
        weight = weight + rule.rate(number) * (average + 5.0 * gained * bool(number))
    torch.testing.assert_close(pairs[0].detach().double(), weight, rtol=tolerance, atol=tolerance)


def test_without_memory_the_weights_are_the_optimizers_path_extrapolated() -> None:
    horizon = 3.0
    gradients = [0.4, -0.2, 0.7, 0.1, -0.5]
    path = steps_of(Compensation(0.0, horizon, 3.0), gradients)
    own = [weight + horizon * gradient for weight, gradient in zip(path, gradients, strict=True)]
    moved = [later - earlier for earlier, later in itertools.pairwise(own)]
    assert moved == pytest.approx([-gradient for gradient in gradients[1:]])


def test_first_steps_are_shorter_by_the_delay() -> None:
    rule = Compensation(0.0, 0.0, 3.0, warm_up_steps=4)
    assert [rule.rate(step) for step in (0, 2, 4, 9)] == pytest.approx([1 / 4, 1 / 2, 1, 1])
    assert steps_of(rule, [1.0, 0, 0, 0, 1.0]) == pytest.approx([-0.25] * 4 + [-1.25])


@pytest.mark.parametrize(
    ("optimizer", "params"),
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.8, "dampening": 0.5}),
        (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.01}),
        (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.0}),
        (torch.optim.NAdam, {"lr": 0.01}),
        (torch.optim.RAdam, {"lr": 0.01}),
        (torch.optim.Adamax, {"lr": 0.01}),
    ],
)
def test_momentum_is_taken_out_but_not_the_length_of_a_step(optimizer: Any, params: Any) -> None:
    def last_change(*, momentum: bool) -> float:
        weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        made = optimizer([weight], **params)
        before = {k: v for k, v in made.param_groups[0].items() if k != "params"}
        for _ in range(3000):  # until averages have settled
            old = weight.item()
            weight.grad = torch.ones(1, dtype=torch.float64)
            if momentum:
                made.step()
            else:
                with without_momentum(made):
                    made.step()
        assert {k: v for k, v in made.param_groups[0].items() if k != "params"} == before
        return weight.item() - old

    assert last_change(momentum=False) == pytest.approx(last_change(momentum=True), rel=2e-2)


def settles(method: DelayCompensation, delay: int, curvature: float, optimizer: Any) -> bool:
    """Whether a parabola's minimum is reached with gradients of `delay` steps ago."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    settings = UpdateSettings(*optimizer, compensation=method, delay=float(delay))
    updater = Updater({"weight": weight}, settings)
    old = deque([weight.item()] * (delay + 1), maxlen=delay + 1)
    for _ in range(6000):
        weight.grad = torch.tensor([curvature * old[0]], dtype=torch.float64)
        updater.step()
        old.append(weight.item())
        if not abs(weight.item()) < 1e6:
            return False
    return abs(weight.item()) < 1e-3


@pytest.mark.parametrize(("delay", "curvature"), [(1, 6.0), (7, 0.4)])
def test_the_lead_is_stable_where_nothing_else_is(delay: int, curvature: float) -> None:
    sgd = (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})  # in the long run a rate of 1
    assert settles(DelayCompensation.OFF, 0, curvature, sgd)
    assert settles(DelayCompensation.LEAD, delay, curvature, sgd)
    stable = [m for m in METHODS if settles(m, delay, curvature, sgd)]
    assert DelayCompensation.OFF not in stable
    if delay == 7:
        assert stable == [DelayCompensation.AUTO, DelayCompensation.LEAD]


def test_an_optimizer_of_ones_own_is_extrapolated() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    settings = UpdateSettings(OwnSign, {"lr": 0.5}, compensation=DelayCompensation.AUTO, delay=2.0)
    updater = Updater({"weight": weight}, settings)
    assert updater.compensator is not None
    rule = updater.compensator.compensation
    assert (rule.memory, rule.horizon, rule.replaces_momentum) == (0.0, 2.0, False)
    weight.grad = torch.tensor([1.0, -1.0])
    updater.step()
    assert weight.tolist() == pytest.approx([-0.5 / 3, 0.5 / 3])  # a third, by the warm-up


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_parameters_without_a_gradient_stay(dtype: torch.dtype) -> None:
    used, unused = (torch.nn.Parameter(torch.ones(3, dtype=dtype)) for _ in range(2))
    settings = UpdateSettings(
        torch.optim.Adam, {"lr": 0.1}, compensation=DelayCompensation.AUTO, delay=1.0
    )
    updater = Updater({"used": used, "unused": unused}, settings)
    for _ in range(3):
        used.grad = torch.ones(3, dtype=dtype)
        updater.step()
    assert torch.equal(unused, torch.ones(3, dtype=dtype))
    assert bool((used < 1).all())
    assert used.dtype is dtype


@pytest.mark.parametrize("method", DelayCompensation)
def test_without_a_delay_nothing_is_done(method: DelayCompensation) -> None:
    assert method.for_delay(0.0) is None
    for stage in range(3):
        assert mean_delay(StagePosition(Schedule.ONE_F_ONE_B, stage, 3, 2)) == 0.0


def test_the_delay_is_what_the_schedule_makes_it() -> None:
    def delays(schedule: Schedule, num_stages: int, frequency: int) -> list[float]:
        positions = [StagePosition(schedule, k, num_stages, frequency) for k in range(num_stages)]
        return [mean_delay(position) for position in positions]

    assert delays(Schedule.ASYNC, 4, 1) == [3, 2, 1, 0]
    assert delays(Schedule.ASYNC, 4, 2) == [1.5, 1, 0.5, 0]
    assert delays(Schedule.TWO_BW, 4, 4) == [1, 1, 1, 1]
    assert delays(Schedule.TWO_BW, 1, 4) == [0]


def test_adam_with_old_gradients_and_no_compensation_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    adam = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    assert compensation_of(DelayCompensation.OFF, 1.0, adam) is None
    assert not caplog.records
    assert compensation_of(DelayCompensation.OFF, 2.0, adam) is None
    assert "Adam uses gradients that are 2 steps old" in caplog.text
    assert "delay_compensation='auto'" in caplog.text


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    assert DelayCompensation.parse(None) is DelayCompensation.OFF
    with pytest.raises(ConfigError, match=r"delay_compensation='fast' is unknown; .*'lead'"):
        DelayCompensation.parse("fast")
