"""Nodes over the in-memory transport, against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.stage.actions import ActionKind, list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

NUM_CLASSES = 4
X = torch.randn(36, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, NUM_CLASSES, (36,), generator=torch.Generator().manual_seed(1))


class Net(torch.nn.Module):
    """Four linear layers with BatchNorm and a skip over the second and third."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.two = torch.nn.Linear(8, 8)
        self.three = torch.nn.Linear(8, 8)
        self.four = torch.nn.Linear(8, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.tanh(self.norm(self.one(x)))
        x = torch.tanh(self.three(torch.tanh(self.two(skip))))
        return self.four(x + skip)


def build() -> Net:
    torch.manual_seed(0)
    return Net()


def loader(batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=batch_size)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def reference(
    *, epochs: int = 1, frequency: int = 1, scheduler: Callable[[Any], Any] | None = None,
    per_step: bool = False, optimizer: Any = torch.optim.Adam, lr: float = 0.01,
) -> Net:  # fmt: skip
    """Plain training; an incomplete group at an epoch's end gets a step of its own."""
    model = build()
    optim = optimizer(model.parameters(), lr=lr)
    schedule = scheduler(optim) if scheduler else None
    for _ in range(epochs):
        batches = list(loader())
        for number, batch in enumerate(batches, 1):
            criterion(model(batch[0]), batch).backward()
            if number % frequency == 0 or number == len(batches):
                optim.step()
                optim.zero_grad()
                if schedule and per_step:
                    schedule.step()
        if schedule and not per_step:
            schedule.step()
    return model


def train(node: Node, **options: Any) -> Node:
    Trainer(node, train_loader=loader(), save=True, **options).train()
    return node


def assert_equal(run: Run, model: torch.nn.Module) -> None:
    fused = model_fusion(node_data=run.folder / "node_data", trained=run.folder / "trained")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(fused[name], tensor, atol=1e-6, rtol=0, msg=name)


ADAM = {"optimizer": torch.optim.Adam, "optimizer_params": {"lr": 0.01}, "criterion": criterion}


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("frequency", [1, 2, 4])
def test_1f1b_equals_plain_training(nodes: int, frequency: int, tmp_path: Path) -> None:
    """9 batches per epoch: the last group of each epoch is incomplete."""
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)
    run_cleanly(run, lambda n: train(n, epochs=2), update_frequency=frequency, **ADAM)
    assert_equal(run, reference(epochs=2, frequency=frequency))


@pytest.mark.parametrize("labels", ["loader", "tensor", "shipped"])
def test_targets_come_from_wherever_they_are(labels: str, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],))
    given = {"loader": loader(), "tensor": Y, "shipped": None}[labels]
    run_cleanly(run, train, labels=given, **ADAM)
    assert_equal(run, reference())


def test_schedulers_step_per_epoch_or_per_step(tmp_path: Path) -> None:
    def halve(optimizer: Any, gamma: float = 0.5) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=gamma)

    for per_step in (False, True):
        run = make_plan(tmp_path / str(per_step), build(), (X[:4],), nodes=2)
        run_cleanly(
            run,
            lambda n: train(n, epochs=2),
            lr_scheduler=halve,
            lr_scheduler_params={"gamma": 0.5},
            lr_step_on_epoch_change=not per_step,
            **ADAM,
        )
        assert_equal(run, reference(epochs=2, scheduler=halve, per_step=per_step))
    run = make_plan(tmp_path / "trainer", build(), (X[:4],), nodes=2)
    run_cleanly(run, lambda n: train(n, epochs=2, lr_scheduler=halve), **ADAM)
    assert_equal(run, reference(epochs=2, scheduler=halve))


def async_reference(run: Run, frequency: int, lr: float) -> Net:
    """Delayed SGD in one process: every stage at the weight version its own schedule gives it."""
    stages = run.plan.stages
    batches = list(loader())
    seen: list[list[int]] = []  # per stage, the version each microbatch's forward pass sees
    for stage in stages:
        position = StagePosition(
            Schedule.ASYNC, stage.index, len(stages), frequency, run.slack(stage.index)
        )
        steps, versions = 0, []
        for action in list_actions(position, len(batches)):
            if action.kind is ActionKind.FORWARD:
                versions.append(steps)
            steps += action.kind is ActionKind.STEP
        seen.append(versions)
    model = build()
    history = [[{n: model.get_parameter(n).detach().clone() for n in s.parameters}] for s in stages]
    sums: list[dict[str, torch.Tensor]] = [{} for _ in stages]
    for number, batch in enumerate(batches):
        for stage, versions, known in zip(stages, seen, history, strict=True):
            for name in stage.parameters:
                model.get_parameter(name).data.copy_(known[versions[number]][name])
        model.zero_grad()
        criterion(model(batch[0]), batch).backward()
        last = number == len(batches) - 1
        for stage, known, total in zip(stages, history, sums, strict=True):
            for name in stage.parameters:
                gradient = model.get_parameter(name).grad
                assert gradient is not None
                total[name] = total[name] + gradient if name in total else gradient.clone()
            if (number + 1) % frequency == 0 or last:
                known.append({n: known[-1][n] - lr * total[n] for n in stage.parameters})
                total.clear()
    for known in history:
        for name, tensor in known[-1].items():
            model.get_parameter(name).data.copy_(tensor)
    return model


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("frequency", [1, 2])
def test_async_equals_delayed_training(nodes: int, frequency: int, tmp_path: Path) -> None:
    """The staleness is exactly the schedule's, and backward uses the forward pass's weights."""
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)
    lr = 0.2
    run_cleanly(
        run,
        train,
        schedule="async",
        delay_compensation=None,
        update_frequency=frequency,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": lr},
        criterion=criterion,
    )
    assert_equal(run, async_reference(run, frequency, lr))
    if nodes == 4 and frequency == 1:
        with pytest.raises(AssertionError):  # and it is not what synchronous training gives
            assert_equal(run, reference(optimizer=torch.optim.SGD, lr=lr))


def test_stashed_versions_keep_to_their_bound(tmp_path: Path) -> None:
    most: dict[int, int] = {}

    def script(node: Node) -> None:
        weights = node._parts.engine.weights
        begin = weights.begin_step

        def counting() -> Mapping[str, torch.Tensor] | None:
            before = begin()
            most[node.plan.stage] = max(most.get(node.plan.stage, 0), weights.num_stashed)
            return before

        weights.begin_step = counting  # type: ignore[method-assign]
        train(node, epochs=2)
        assert weights.num_stashed == 0
        assert node._parts.engine.num_in_flight == 0

    run = make_plan(tmp_path, build(), (X[:4],), nodes=4)
    run_cleanly(run, script, schedule="async", **ADAM)
    assert most == {0: 3, 1: 2, 2: 1, 3: 0}


def test_losses_and_events_are_written(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],))
    run_cleanly(run, lambda n: train(n, epochs=2), update_frequency=2, **ADAM)
    losses = [float(line) for line in (tmp_path / "losses.txt").read_text().split()]
    assert len(losses) == 10
    for stage in run.plan.stages:
        steps = run.events(stage.node_id, "step")
        assert [event["loss"] for event in steps] == pytest.approx(losses)
        assert len(run.events(stage.node_id, "epoch_ended")) == 2
        assert len(run.events(stage.node_id, "run_ended")) == 1


def test_initial_weights_can_be_given(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],))
    other = Net()

    def save(node: Node) -> None:
        if node.node_type != "root":
            node.serve()
            return
        node.trigger_save_submodel()
        node.end_phase(training=False)

    run_cleanly(run, save, model=other)
    fused = model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
    assert all(torch.equal(fused[name], tensor) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize(
    ("compression", "atol"),
    [(True, 5e-3), ("bf16", 5e-3), ("int8", 2e-2), ("int4", 0.1), ("int4-hadamard", 0.1)],
)
def test_compression_changes_little(compression: Any, atol: float, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],))
    # Not Adam: it blows the rounding of a gradient that should be zero up to a whole step.
    sgd = {"optimizer": torch.optim.SGD, "optimizer_params": {"lr": 0.05}, "criterion": criterion}
    run_cleanly(run, train, compression=compression, **sgd)
    fused = model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
    plain = reference(optimizer=torch.optim.SGD, lr=0.05).state_dict()
    different = False
    for name, tensor in plain.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(fused[name], tensor, atol=atol, rtol=0)
            different |= not torch.equal(fused[name], tensor)
    assert different


@pytest.mark.parametrize("frequency", [1, 2])
def test_saving_in_the_middle_of_an_epoch_changes_nothing(frequency: int, tmp_path: Path) -> None:
    """Every node saves the weights of one step, and training goes on as if nothing had been."""

    class Saving(Trainer):
        def train(self) -> None:
            self.prelim_checks()
            for number, (x, _) in enumerate(self.train_loader, 1):
                self.node.forward_compute(x)
                if number == 5:
                    self.node.trigger_save_submodel()
                    fused.append(
                        model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
                    )
            self.node.wait_for_backwards()

    fused: list[dict[str, torch.Tensor]] = []
    run = make_plan(tmp_path, build(), (X[:4],), nodes=1)
    run_cleanly(
        run,
        lambda n: Saving(n, train_loader=loader(), save=True).train(),
        update_frequency=frequency,
        **ADAM,
    )
    assert_equal(run, reference(frequency=frequency))
    halfway = build()
    optimizer = torch.optim.Adam(halfway.parameters(), lr=0.01)
    for number, batch in enumerate(list(loader())[: 5 - 5 % frequency], 1):
        criterion(halfway(batch[0]), batch).backward()
        if number % frequency == 0:
            optimizer.step()
            optimizer.zero_grad()
    for name, parameter in halfway.named_parameters():
        torch.testing.assert_close(fused[0][name], parameter.data, atol=1e-6, rtol=0)


def test_a_script_may_reuse_its_batch_buffers(tmp_path: Path) -> None:
    """What is still under way when forward_compute returns is not the script's own memory."""

    class Reusing(Trainer):
        def train(self) -> None:
            self.prelim_checks()
            x, y = torch.empty(4, 6), torch.empty(4, dtype=torch.long)
            for new_x, new_y in loader():
                x.copy_(new_x)
                y.copy_(new_y)
                self.node.root.train_cursor = _Batch(x, y)
                self.node.forward_compute(x)
                self.node.update_with_latest_weights()  # its backward pass is done

    run = make_plan(tmp_path, build(), (X[:4],))

    def script(node: Node) -> None:
        Reusing(node, train_loader=loader(), save=True).train()

    run_cleanly(run, script, **ADAM)
    assert_equal(run, reference())


class _Batch:
    """A cursor over buffers that are filled anew for every batch."""

    numbers = iter(range(100))

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._batch = (x, y)

    def take(self) -> Any:
        from ravnest.node.batches import CurrentBatch

        return CurrentBatch(next(self.numbers), self._batch, 4)

    def take_untrained(self) -> Any:
        from ravnest.node.batches import UntrainedBatches

        return UntrainedBatches()

    def loader_state(self) -> Any:
        return None
