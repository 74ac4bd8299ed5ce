"""What goes wrong in training is said once, clearly, on every node, and ruins no checkpoint."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.errors import ConfigError, DataOrderError, TrainingError

X = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (20,), generator=torch.Generator().manual_seed(1))


def build() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [part for _ in range(3) for part in (torch.nn.Linear(6, 6), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(6, 3))


def loader(count: int = 20) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X[:count], Y[:count]), batch_size=4)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def train(node: Node, **options: Any) -> None:
    Trainer(node, train_loader=loader(), **options).train()


SGD: dict[str, Any] = {
    "optimizer": torch.optim.SGD,
    "optimizer_params": {"lr": 0.1},
    "criterion": criterion,
}


def fails(
    folder: Path, words: str, stage: int, kind: type[Exception], script: Any = train, **options: Any
) -> Run:
    """Trains over three stages; the stage must fail with these words, and all end with them."""
    run = make_plan(folder, build(), (X[:4],), nodes=3)
    run_nodes(run, script, **{**SGD, **options})
    failed = run.plan.clusters[0][stage]
    assert len(run.errors) == 3
    with pytest.raises(kind, match=words):
        raise run.errors[failed]
    for error in run.errors.values():
        with pytest.raises(Exception, match=words):
            raise error
    return run


def at_call(number: int, wrong: Callable[[torch.Tensor, Any], Any]) -> Callable[..., Any]:
    """The criterion, but for one call."""
    calls = iter(range(1000))

    def chosen(predictions: torch.Tensor, targets: Any) -> Any:
        return (wrong if next(calls) == number else criterion)(predictions, targets)

    return chosen


@pytest.mark.parametrize("schedule", ["1f1b", "async"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite(value: float, schedule: str, tmp_path: Path) -> None:
    fails(
        tmp_path,
        rf"returned {value} for microbatch 0\.5 \(samples 2 to 4 of batch 2\) on the leaf, before "
        "optimizer step 2",
        2,
        TrainingError,
        criterion=at_call(5, lambda p, t: criterion(p, t) * value),
        num_microbatches=2,
        schedule=schedule,
    )


def test_a_loss_that_is_no_number(tmp_path: Path) -> None:
    wrong = at_call(1, lambda p, t: p)
    words = r"the criterion returned \(4, 3\) for microbatch 0\.1, expected one number"
    fails(tmp_path, words, 2, TrainingError, criterion=wrong)


def test_targets_of_another_length(tmp_path: Path) -> None:
    batches = [(x, y[:3] if number == 3 else y) for number, (x, y) in enumerate(loader())]
    run = fails(
        tmp_path,
        r"the criterion failed for microbatch 0\.3 \(samples 0 to 4 of batch 3\) with ValueError: "
        r"Expected input batch_size .* predictions are \(4, 3\) torch.float32, targets "
        r"\(3,\) torch.int64",
        2,
        TrainingError,
        script=lambda node: Trainer(node, train_loader=batches).train(),
    )
    assert "the microbatch has 4 samples, its targets [3]: make them" in str(
        run.errors[run.plan.clusters[0][2]]
    )
    assert isinstance(run.errors[run.plan.clusters[0][2]].__cause__, ValueError)


def test_a_loader_that_ends_early_on_the_leaf(tmp_path: Path) -> None:
    words = (
        r"`labels` of node \d, the leaf, ended after 3 batches \(its length says 3\), but batch 3 "
        "of epoch 0 came from the root, whose loader has 5"
    )
    fails(tmp_path, words, 2, DataOrderError, labels=loader(12))


def test_an_iterator_in_place_of_a_loader_on_the_leaf(tmp_path: Path) -> None:
    """It ends with the first epoch, after which it has no batch."""
    words = "ended after 0 batches, but batch 0 of epoch 1 came from the root, whose loader has 5"
    run = fails(
        tmp_path,
        words,
        2,
        DataOrderError,
        script=lambda node: train(node, epochs=2),
        labels=(batch for batch in loader()),
    )
    assert "pass a loader, not an iterator" in str(run.errors[run.plan.clusters[0][2]])


@pytest.mark.parametrize(("own", "words"), [(28, "the last 2 will not"), (12, "error at batch 3")])
def test_lengths_that_differ_are_told_at_the_first_batch(
    own: int, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """20 samples in 5 batches on the root, which stops after 3: neither is an error."""

    class Stopping(Trainer):
        def train(self) -> None:
            for x, _ in itertools.islice(self.train_loader or (), 3):
                self.node.forward_compute(x)
            self.node.wait_for_backwards()

    x, y = torch.cat([X, X])[:own], torch.cat([Y, Y])[:own]
    labels = DataLoader(TensorDataset(x, y), batch_size=4)
    run = make_plan(tmp_path, build(), (X[:4],), nodes=2)
    script = lambda node: Stopping(node, train_loader=loader()).train()  # noqa: E731
    run_cleanly(run, script, labels=labels, **SGD)
    (said,) = [each.getMessage() for each in caplog.records if "root's loader 5" in each.message]
    assert words in said
    assert f"the leaf, has {own // 4} batches" in said


def test_a_loader_that_fails_on_the_root(tmp_path: Path) -> None:
    def batches() -> Any:
        yield from list(loader())[:2]
        raise OSError("the disk is gone")

    class Batches:
        def __iter__(self) -> Any:
            return batches()

    def script(node: Node) -> None:
        Trainer(node, train_loader=Batches()).train()

    fails(tmp_path, "the disk is gone", 0, OSError, script)


def failing_at(step: int, stage: int) -> tuple[Any, Any]:
    """A script and an optimizer that fails on one stage."""

    class Failing(torch.optim.SGD):
        number = 0
        fails = False

        def step(self, closure: Any = None) -> Any:
            self.number += 1
            if self.fails and self.number > step:
                raise RuntimeError("out of luck")
            return super().step(closure)

    class Saving(Trainer):
        def train(self) -> None:
            self.prelim_checks()
            for number, (x, _) in enumerate(self.train_loader, 1):
                self.node.forward_compute(x)
                if number == 2:
                    self.node.trigger_save_submodel()
            self.node.wait_for_backwards()

    def script(node: Node) -> None:
        assert isinstance(node.optimizer, Failing)
        node.optimizer.fails = node.plan.stage == stage
        Saving(node, train_loader=loader(), save=True).train()

    return script, Failing


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_an_optimizer_that_fails_leaves_the_checkpoint_before(stage: int, tmp_path: Path) -> None:
    """Saved after two batches; the third step fails on one stage, and nothing is saved again."""
    script, optimizer = failing_at(2, stage)
    words = "the optimizer Failing failed at step 2: RuntimeError: out of luck"
    fails(tmp_path, words, stage, TrainingError, script, optimizer=optimizer)
    found = model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
    assert not list((tmp_path / "trained").rglob("*.partial"))
    model = build()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in list(loader())[:2]:
        criterion(model(batch[0]), batch).backward()
        plain.step()
        plain.zero_grad()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0)


def test_a_scheduler_that_fails(tmp_path: Path) -> None:
    def factory(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (3 - step))

    words = "the scheduler LambdaLR failed after step 2: ZeroDivisionError"
    run = make_plan(tmp_path, build(), (X[:4],), nodes=3)
    run_nodes(run, train, lr_scheduler=factory, lr_step_on_epoch_change=False, **SGD)
    assert len(run.errors) == 3
    assert all(words in str(error) for error in run.errors.values())


def test_an_optimizer_that_needs_a_closure(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=2)
    run_nodes(run, train, optimizer=torch.optim.LBFGS, criterion=criterion)
    assert len(run.errors) == 2
    assert all(isinstance(error, ConfigError) for error in run.errors.values())
    assert all("LBFGS needs closure" in str(error) for error in run.errors.values())


@pytest.mark.parametrize("where", ["forward", "backward", "step"])
def test_running_out_of_memory_shows_the_plan(where: str, tmp_path: Path) -> None:
    """An allocation beyond any address space, in the criterion, its gradient, or the optimizer."""

    class Huge(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.empty(1 << 58) if where == "forward" else x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return torch.empty(1 << 58) if where == "backward" else gradient

    class Hungry(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return torch.empty(1 << 58) if where == "step" else super().step(closure)

    during = {
        "forward": r"the forward pass of microbatch 0\.0",
        "backward": r"the backward pass of microbatch 0\.0",
        "step": "optimizer step 0",
    }[where]
    run = make_plan(tmp_path, build(), (X[:4],), nodes=3)
    options = {"criterion": lambda p, t: criterion(Huge.apply(p), t)}  # type: ignore[no-untyped-call]
    run_nodes(run, train, **{**SGD, **options, "optimizer": Hungry})
    counted = run.plan.stages[2].needed_bytes / 1e9
    words = (
        rf"ran out of memory in {during} on stage 2: .*The plan counted {counted:.2f} GB of the "
        r"4\.00 GB that the node offers; the process takes \d\.\d\d GB"
    )
    assert len(run.errors) == 3
    with pytest.raises(TrainingError, match=words):
        raise run.errors[run.plan.clusters[0][2]]


GROUPS = {"*.bias": {"weight_decay": 0.0}, "6.*": {"lr": 0.05}}


def grouped(model: torch.nn.Module) -> torch.optim.Optimizer:
    named = dict(model.named_parameters())
    biases = [each for name, each in named.items() if name.endswith("bias")]
    last = [named["6.weight"]]
    rest = [each for name, each in named.items() if "bias" not in name and name != "6.weight"]
    groups = [{"params": rest}, {"params": biases, "weight_decay": 0}, {"params": last, "lr": 0.05}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1)


@pytest.mark.parametrize("nodes", [1, 3])
def test_groups_by_name_equal_those_of_one_process(nodes: int, tmp_path: Path) -> None:
    """With a scheduler that has a rate per group, and stages in which groups are empty."""
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)
    scheduler: Any = torch.optim.lr_scheduler.OneCycleLR
    cycle = {"max_lr": [0.3, 0.2, 0.1], "total_steps": 20}
    run_cleanly(
        run,
        lambda node: train(node, epochs=2, save=True),
        param_groups=GROUPS,
        lr_scheduler=scheduler,
        lr_scheduler_params=cycle,
        lr_step_on_epoch_change=False,
        **{**SGD, "optimizer_params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}},
    )
    model = build()
    optimizer = grouped(model)
    schedule = scheduler(optimizer, **cycle)
    for batch in [*loader(), *loader()]:
        criterion(model(batch[0]), batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    found = model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=0)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_pattern_that_no_stage_has_a_name_for(nodes: int, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)
    groups = {**GROUPS, "9.*": {}, "*.beta": {"lr": 1.0}}
    run_nodes(run, train, param_groups=groups, **SGD)
    assert len(run.errors) == nodes
    words = "patterns that match no parameter of the model: ['9.*', '*.beta']"
    assert all(words in str(error) for error in run.errors.values())


def test_groups_must_be_the_same_on_every_node(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=2)

    def script(node: Node) -> None:
        if node.node_type == "leaf":
            service = node._parts.service
            kind = type(service._settings)
            own = {**service._settings.announcement(), "param_groups": "{'*': {}}"}
            service._settings = kind(**own)
        train(node)

    run_nodes(run, script, param_groups=GROUPS, **SGD)
    assert all("param_groups=\"{'*': {}}\"" in str(error) for error in run.errors.values())
    assert len(run.errors) == 2


def test_batchnorm_of_one_value_says_so_before_it_ruins_the_statistics(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), *build())
    run = make_plan(tmp_path, model, (X[:4],), nodes=3)
    run_nodes(run, train, **SGD, num_microbatches=3)  # batches of 4: two samples, one and one
    assert len(run.errors) == 3
    for error in run.errors.values():
        with pytest.raises(Exception, match=r"one value per channel, an input of shape \(1, 6\)"):
            raise error
