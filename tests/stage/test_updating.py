"""Optimizers and schedulers of a stage: every torch.optim class, groups by name, and what fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ravnest.errors import ConfigError, TrainingError
from ravnest.stage.groups import check_groups, grouped, unmatched
from ravnest.stage.updating import Updater, UpdateSettings

OPTIMIZERS = [
    found
    for name in sorted(dir(torch.optim))
    if isinstance(found := getattr(torch.optim, name), type)
    and issubclass(found, torch.optim.Optimizer)
    and found is not torch.optim.Optimizer
]
WITHOUT_CLOSURE = [each for each in OPTIMIZERS if each is not torch.optim.LBFGS]


def parameters(seed: int = 0) -> dict[str, torch.nn.Parameter]:
    torch.manual_seed(seed)
    shapes = {"one.weight": (3, 4), "one.bias": (3,), "norm.weight": (3,), "two.weight": (2, 3)}
    return {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}


def give_gradients(of: dict[str, torch.nn.Parameter], optimizer: Any) -> None:
    torch.manual_seed(1)
    for each in of.values():
        gradient = torch.randn(each.shape)
        each.grad = gradient.to_sparse() if optimizer is torch.optim.SparseAdam else gradient


@pytest.mark.parametrize("optimizer", WITHOUT_CLOSURE, ids=lambda each: each.__name__)
def test_every_class_steps_as_by_itself(optimizer: Any) -> None:
    ours, theirs = parameters(), parameters()
    if optimizer is torch.optim.Muon:  # takes matrices alone
        ours, theirs = ({n: p for n, p in each.items() if p.dim() == 2} for each in (ours, theirs))
    updater = Updater(ours, UpdateSettings(optimizer, {"lr": 0.1}))
    plain = optimizer(list(theirs.values()), lr=0.1)
    for _ in range(3):
        give_gradients(ours, optimizer)
        give_gradients(theirs, optimizer)
        updater.step()
        plain.step()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(each.grad is None for each in ours.values())


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"step\(\) of the optimizer LBFGS needs closure"):
        Updater(parameters(), UpdateSettings(torch.optim.LBFGS))


def test_a_scheduler_that_needs_a_metric_is_refused() -> None:
    plateau: Any = torch.optim.lr_scheduler.ReduceLROnPlateau
    with pytest.raises(ConfigError, match=r"step\(\) of the scheduler ReduceLROnPlateau needs met"):
        Updater(parameters(), UpdateSettings(torch.optim.SGD, {"lr": 1.0}, plateau))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (UpdateSettings(torch.optim.SGD, {"rate": 1}), "optimizer=SGD cannot be made: TypeError"),
        (UpdateSettings(torch.optim.SGD, {"lr": -1}), "SGD cannot be made: ValueError: Invalid"),
        (UpdateSettings(torch.optim.Muon), "optimizer=Muon cannot be made: ValueError"),
        (
            UpdateSettings(torch.optim.SGD, {}, torch.optim.lr_scheduler.StepLR),
            "lr_scheduler=StepLR cannot be made: TypeError: .*step_size",
        ),
    ],
)
def test_what_cannot_be_made_is_named(settings: UpdateSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Updater(parameters(), settings)


class Failing(torch.optim.SGD):
    """Works once."""

    made = 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.made += 1
        if self.made == 2:
            raise ZeroDivisionError("no more")


def test_a_step_that_fails_says_which() -> None:
    updater = Updater(parameters(), UpdateSettings(Failing, {"lr": 0.1}))
    updater.step()
    with pytest.raises(TrainingError, match="optimizer Failing failed at step 1: ZeroDivision"):
        updater.step()


@pytest.mark.parametrize("per_epoch", [True, False])
def test_a_scheduler_that_fails_says_when(per_epoch: bool) -> None:
    def factory(optimizer: torch.optim.Optimizer) -> Any:
        def factor(count: int) -> float:
            return 1 / (2 - count)

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    settings = UpdateSettings(torch.optim.SGD, {"lr": 0.1}, factory, {}, per_epoch)
    updater = Updater(parameters(), settings)
    when = "at the end of an epoch, after 2 steps" if per_epoch else "after step 1"
    updater.step()
    if per_epoch:
        updater.end_epoch()
        updater.step()
    fails = updater.end_epoch if per_epoch else updater.step
    with pytest.raises(TrainingError, match=f"scheduler LambdaLR failed {when}: ZeroDivision"):
        fails()


GROUPS = {"*.bias": {"weight_decay": 0.0}, "norm.*": {"weight_decay": 0.0, "lr": 0.5}, "x.*": {}}


def test_groups_are_by_name_and_the_same_on_every_stage() -> None:
    named = parameters()
    named["frozen.bias"] = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    groups = grouped(named, GROUPS)
    names = {id(each): name for name, each in named.items()}
    found = [[names[id(each)] for each in group["params"]] for group in groups]  # type: ignore[index,call-overload]
    assert found == [["one.weight", "two.weight"], ["one.bias"], ["norm.weight"], []]
    updater = Updater(named, UpdateSettings(torch.optim.AdamW, {"lr": 0.1}, param_groups=GROUPS))
    assert updater.optimizer is not None
    rates = [(group["lr"], group["weight_decay"]) for group in updater.optimizer.param_groups]
    assert rates == [(0.1, 0.01), (0.1, 0.0), (0.5, 0.0), (0.1, 0.01)]
    give_gradients(parameters(), torch.optim.AdamW)
    updater.step()
    assert updater.unmatched() == ["x.*"]
    assert unmatched(["x.*", "o*"], ["one"]) == ["x.*"]


@pytest.mark.parametrize("groups", [[], {"a": 1}, {1: {}}, {"a": {"params": []}}], ids=str)
def test_what_is_no_group_is_refused(groups: Any) -> None:
    with pytest.raises(ConfigError, match=r"param_groups=.* is not possible"):
        check_groups(groups)
