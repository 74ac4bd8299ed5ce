"""`2bw` against one process that computes every gradient with the weights of one step before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tied_harness as tied
import torch
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.errors import ConfigError, TrainingError
from ravnest.node.settings import RunSettings
from ravnest.stage.schedule import Schedule

X = torch.randn(45, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 4, (45,), generator=torch.Generator().manual_seed(1))


class Net(torch.nn.Module):
    """Five linear layers, for up to five stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def build() -> Net:
    torch.manual_seed(0)
    return Net()


def loader(batch_size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=batch_size)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def adam(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, eps=1e-4)


ADAM: dict[str, Any] = {"optimizer": adam, "criterion": criterion, "delay_compensation": None}


def delayed(
    model: torch.nn.Module,
    groups: Callable[[], Iterator[Any]],
    gradient: Callable[[torch.nn.Module, Any], None],
    *,
    epochs: int,
    make: Callable[..., torch.optim.Optimizer] = adam,
    after_step: Callable[[torch.optim.Optimizer], Callable[[], None]] = lambda _: lambda: None,
) -> torch.nn.Module:
    """W(t+1) = W(t) - update(gradient(W(t-1))); in an epoch's first step, of W(t) itself.

    Args:
        groups: what each step of an epoch is made of.
        gradient: adds the gradient of a group at the model's weights to them.
    """
    live = {name: torch.nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    optimizer = make(live.values())
    end_step = after_step(optimizer)
    for _ in range(epochs):
        before = {name: p.detach().clone() for name, p in live.items()}
        for number, group in enumerate(groups()):
            newest = {name: p.detach().clone() for name, p in live.items()}
            used = newest if number == 0 else before
            for name, parameter in model.named_parameters():
                parameter.data.copy_(used[name])
            model.zero_grad()
            gradient(model, group)
            for name, parameter in model.named_parameters():
                live[name].grad = parameter.grad
            optimizer.step()
            end_step()
            before = newest
    for name, parameter in model.named_parameters():
        parameter.data.copy_(live[name])
    return model


def assert_like(run: Run, model: torch.nn.Module) -> None:
    fused = model_fusion(node_data=run.folder / "node_data", trained=run.folder / "trained")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(fused[name], tensor, atol=1e-6, rtol=0, msg=name)


def train(node: Node, batch_size: int, epochs: int = 2) -> Node:
    Trainer(node, train_loader=loader(batch_size), epochs=epochs, save=True).train()
    return node


def _grouped(batches: list[Any], frequency: int) -> Iterator[list[Any]]:
    for start in range(0, len(batches), frequency):
        yield batches[start : start + frequency]


def _sum_of_losses(model: torch.nn.Module, group: list[Any]) -> None:
    for batch in group:
        criterion(model(batch[0]), batch).backward()


@pytest.mark.parametrize("nodes", [2, 3, 4, 5])
@pytest.mark.parametrize("more", [0, 3])
def test_batches_of_a_step_are_computed_with_the_weights_before(
    nodes: int, more: int, tmp_path: Path
) -> None:
    """15 batches of 3: with 4, 6, 7 or 8 of them a step the last one of an epoch is incomplete."""
    frequency = nodes + more
    run = make_plan(tmp_path, build(), (X[:3],), nodes=nodes)
    run_cleanly(run, lambda n: train(n, 3), schedule="2bw", update_frequency=frequency, **ADAM)
    expected = delayed(
        build(), lambda: _grouped(list(loader(3)), frequency), _sum_of_losses, epochs=2
    )
    assert_like(run, expected)
    for stage in run.plan.stages:
        first, second = run.events(stage.node_id, "staleness")
        assert (first["epoch"], second["epoch"]) == (0, 1)
        for event in (first, second):
            assert event["stale_0"] == frequency
            assert event["stale_1"] == 15 - frequency


def _whole_batch(model: torch.nn.Module, batch: Any) -> None:
    criterion(model(batch[0]), batch).backward()


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
def test_a_batch_is_split_into_as_many_microbatches_as_there_are_stages(
    nodes: int, tmp_path: Path
) -> None:
    """Batches of 10, 10, 10, 10 and 5: the last has one sample per stage at most."""
    run = make_plan(tmp_path, build(), (X[:10],), nodes=nodes)
    run_cleanly(run, lambda n: train(n, 10), schedule="2bw", **ADAM)
    for event in run.events(run.plan.clusters[0][-1], "epoch_ended"):
        assert event["num_microbatches"] == 5 * nodes
    for node in run.results.values():
        assert (node.n_forwards, node.n_backwards) == (10, 10)
    if nodes > 1:
        expected = delayed(build(), lambda: iter(loader(10)), _whole_batch, epochs=2)
    else:  # one node is plain training under every schedule
        expected = build()
        optimizer = adam(expected.parameters())
        for batch in [*loader(10), *loader(10)]:
            _whole_batch(expected, batch)
            optimizer.step()
            optimizer.zero_grad()
    assert_like(run, expected)


@pytest.mark.parametrize("kind", [tied.TiedGpt, tied.Albert])
@pytest.mark.parametrize("nodes", [2, 4])
def test_all_uses_of_a_parameter_have_the_same_delay(
    kind: Callable[[], Any], nodes: int, tmp_path: Path
) -> None:
    run = make_plan(tmp_path, tied.build(kind), (tied.X[: tied.BATCH],), nodes=nodes)
    run_cleanly(
        run,
        lambda n: tied.train(n, epochs=2),
        schedule="2bw",
        update_frequency=4,
        **tied.SETTINGS,
    )

    def gradient(model: torch.nn.Module, group: list[Any]) -> None:
        for batch in group:
            tied.criterion(model(batch[0]), batch).backward()

    expected = delayed(
        tied.build(kind),
        lambda: _grouped(list(tied.loader()), 4),
        gradient,
        epochs=2,
        make=tied.adam,
        after_step=lambda optimizer: tied.decay(optimizer).step,
    )
    tied.assert_equal(run, expected)


def test_two_versions_are_held_and_never_more(tmp_path: Path) -> None:
    most: dict[int, int] = {}

    def script(node: Node) -> None:
        weights = node._parts.engine.weights
        begin = weights.begin_step

        def counting() -> Mapping[str, torch.Tensor] | None:
            before = begin()
            most[node.plan.stage] = max(most.get(node.plan.stage, 0), weights.num_stashed)
            return before

        weights.begin_step = counting  # type: ignore[method-assign]
        train(node, 3)
        assert weights.num_stashed == 0
        assert node._parts.engine.num_in_flight == 0

    run = make_plan(tmp_path, build(), (X[:3],), nodes=4)
    run_cleanly(run, script, schedule="2bw", update_frequency=4, **ADAM)
    assert most == {0: 1, 1: 1, 2: 1, 3: 1}


def test_evaluation_between_batches_changes_nothing_and_uses_the_newest(tmp_path: Path) -> None:
    """Also not where replicas must go back to older values for the next training batch."""

    class Evaluating(Trainer):
        def train(self) -> None:
            self.prelim_checks()
            for batch in self.train_loader:
                self.node.forward_compute(batch[0])
                one = self.node.no_grad_forward_compute(tied.X[:3])
                assert torch.equal(one, self.node.no_grad_forward_compute(tied.X[:3]))
            self.node.wait_for_backwards()
            self.node.trigger_save_submodel()

    def plain(node: Node) -> dict[str, torch.Tensor]:
        tied.train(node)
        return {}

    def evaluating(node: Node) -> dict[str, torch.Tensor]:
        Evaluating(node, train_loader=tied.loader()).train()
        return {}

    found = []
    for name, script in (("plain", plain), ("evaluating", evaluating)):
        run = make_plan(tmp_path / name, tied.build(), (tied.X[:3],), nodes=3)
        run_cleanly(run, script, schedule="2bw", update_frequency=3, **tied.SETTINGS)
        found.append(tied.fused(run))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_too_few_microbatches_are_refused(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:10],), nodes=4)
    run_nodes(run, lambda node: None, schedule="2bw", num_microbatches=3, **ADAM)
    assert len(run.errors) == 4
    for error in run.errors.values():
        assert isinstance(error, ConfigError)
        assert "num_microbatches=3 make 3 for 4 stages" in str(error)
        assert "num_microbatches=4" in str(error.hint)


@pytest.mark.parametrize(
    ("schedule", "frequency", "given", "expected"),
    [
        (Schedule.TWO_BW, 1, None, 5),
        (Schedule.TWO_BW, 2, None, 3),
        (Schedule.TWO_BW, 7, None, 1),
        (Schedule.TWO_BW, 2, 4, 4),
        (Schedule.ASYNC, 1, None, 1),
        (Schedule.ONE_F_ONE_B, 1, None, 1),
        (Schedule.ASYNC, 1, 2, 2),
    ],
)
def test_the_number_of_microbatches_that_is_chosen(
    schedule: Schedule, frequency: int, given: int | None, expected: int
) -> None:
    settings = RunSettings(schedule, frequency, None, False, given).for_stages(5)
    assert settings.num_microbatches == expected


def test_a_gradient_of_the_wrong_age_is_an_error(tmp_path: Path) -> None:
    """A stage whose optimizer steps twice breaks the contract, and says so."""

    def script(node: Node) -> None:
        if node.node_type == "leaf":
            engine = node._parts.engine
            step = engine.step

            def twice(*, is_left_out: bool) -> None:
                step(is_left_out=is_left_out)
                step(is_left_out=is_left_out)

            engine.step = twice  # type: ignore[method-assign]
        train(node, 3)

    run = make_plan(tmp_path, build(), (X[:3],), nodes=2)
    run_nodes(run, script, schedule="2bw", update_frequency=2, **ADAM)
    (leaf,) = [run.errors[stage.node_id] for stage in run.plan.stages if stage.index == 1]
    assert isinstance(leaf, TrainingError)
    assert "optimizer steps" in str(leaf)
