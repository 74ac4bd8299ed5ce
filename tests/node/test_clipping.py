"""Gradients are clipped by the norm of the whole model, whatever the number of stages."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import tied_harness
import torch
from node_harness import make_plan, run_cleanly, run_nodes
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.errors import TrainingError
from ravnest.stage.actions import ActionKind, list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule

X = torch.randn(36, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randn(36, 3, generator=torch.Generator().manual_seed(1))
LR = 0.1


def build() -> torch.nn.Sequential:
    """Layers whose gradients have norms of the same order."""
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (torch.nn.Linear(6, 6), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(6, 3))


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(X, Y), batch_size=4)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(predictions, targets[1])


def train(node: Node, epochs: int = 1) -> None:
    Trainer(node, train_loader=loader(), save=True, epochs=epochs).train()


SGD: dict[str, Any] = {
    "optimizer": torch.optim.SGD,
    "optimizer_params": {"lr": LR, "momentum": 0.9},
    "criterion": criterion,
}


def assert_fused(folder: Path, model: torch.nn.Module) -> None:
    fused = model_fusion(node_data=folder / "node_data", trained=folder / "trained")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(fused[name], tensor, atol=1e-6, rtol=0, msg=name)


def reference(max_norm: float | None, norm_type: float, frequency: int) -> tuple[Any, list[float]]:
    """Plain training over two epochs, and the norms before they were clipped."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    norms = []
    for _ in range(2):
        batches = list(loader())
        for number, batch in enumerate(batches, 1):
            criterion(model(batch[0]), batch).backward()
            if number % frequency == 0 or number == len(batches):
                if max_norm is not None:
                    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
                    norms.append(float(norm))
                optimizer.step()
                optimizer.zero_grad()
    return model, norms


FLUSHED = [str(each) for each in Schedule if each.is_flushed]
UNFLUSHED = [str(each) for each in Schedule if not each.is_flushed]


@pytest.mark.parametrize("schedule", FLUSHED)
@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("max_norm", "norm_type", "frequency"), [(0.7, 2.0, 1), (1.2, 2.0, 4), (0.4, math.inf, 1)]
)
def test_with_a_flush_it_clips_as_one_process(
    nodes: int, max_norm: float, norm_type: float, frequency: int, schedule: str, tmp_path: Path
) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)
    run_cleanly(
        run,
        lambda node: train(node, epochs=2),
        clip_grad_norm=max_norm,
        clip_norm_type=norm_type,
        schedule=schedule,
        update_frequency=frequency,
        **SGD,
    )
    model, norms = reference(max_norm, norm_type, frequency)
    assert any(norm > max_norm for norm in norms)
    assert any(norm < max_norm for norm in norms)
    assert_fused(tmp_path, model)
    for stage in run.plan.stages:
        found = [event["gradient_norm"] for event in run.events(stage.node_id, "step")]
        assert found == norms
    with pytest.raises(AssertionError):  # nor is it what training gives without
        assert_fused(tmp_path, reference(None, norm_type, frequency)[0])


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16,), (torch.float32, torch.float64)], ids=str)
def test_norms_have_the_bits_of_one_process(
    dtypes: tuple[torch.dtype, ...], nodes: int, tmp_path: Path
) -> None:
    """Half precision rounds them, and stages of several dtypes agree on one."""

    def cast(model: torch.nn.Sequential) -> torch.nn.Sequential:
        parts: list[torch.nn.Module] = []
        for number, layer in enumerate(model):
            dtype = dtypes[number * len(dtypes) // len(model)]
            parts += [Cast(dtype), layer.to(dtype)]
        return torch.nn.Sequential(*parts)

    def loss_of(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
        return criterion(predictions.float(), targets)

    run = make_plan(tmp_path, cast(build()), (X[:4],), nodes=nodes)
    settings: dict[str, Any] = {**SGD, "criterion": loss_of, "schedule": "1f1b"}
    run_cleanly(run, train, clip_grad_norm=0.3, **settings)
    model, norms = cast(build()), []
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for batch in loader():
        loss_of(model(batch[0]), batch).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        optimizer.step()
        optimizer.zero_grad()
    for stage in run.plan.stages:
        found = [event["gradient_norm"] for event in run.events(stage.node_id, "step")]
        assert found == pytest.approx(norms, rel=0 if len(dtypes) == 1 else 1e-6)
    fused = model_fusion(node_data=tmp_path / "node_data", trained=tmp_path / "trained")
    if len(dtypes) == 1:
        assert all(torch.equal(fused[name], each) for name, each in model.state_dict().items())


class Cast(torch.nn.Module):
    """To a dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self._dtype)


def test_microbatches_are_clipped_together(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=3)
    run_cleanly(run, lambda n: train(n, 2), clip_grad_norm=0.7, num_microbatches=3, **SGD)
    assert_fused(tmp_path, reference(0.7, 2.0, 1)[0])


@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_a_shared_parameter_counts_once_and_with_all_its_gradients(
    norm_type: float, tmp_path: Path
) -> None:
    max_norm = 0.3
    run = make_plan(tmp_path, tied_harness.build(), (tied_harness.X[:3],), nodes=4)
    assert any(stage.replicas for stage in run.plan.stages)
    run_cleanly(
        run,
        tied_harness.train,
        clip_grad_norm=max_norm,
        clip_norm_type=norm_type,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": LR},
        criterion=tied_harness.criterion,
    )
    model = tied_harness.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for batch in tied_harness.loader():
        tied_harness.criterion(model(batch[0]), batch).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type)
        assert norm > max_norm
        optimizer.step()
        optimizer.zero_grad()
    tied_harness.assert_equal(run, model)


def async_norms_and_weights(run: Any, max_norm: float, frequency: int) -> tuple[Any, Any]:
    """Delayed SGD in one process, clipped by what each stage can know by then."""
    num_stages, batches = len(run.plan.stages), list(loader())
    seen, last_forward = [], []
    for index in range(num_stages):
        steps, versions, latest = 0, [], []
        position = StagePosition(Schedule.ASYNC, index, num_stages, frequency, run.slack(index))
        for action in list_actions(position, len(batches)):
            if action.kind is ActionKind.FORWARD:
                versions.append(steps)
            if action.kind is ActionKind.STEP:
                latest.append(len(versions) - 1)  # the microbatch that a step's knowledge is from
                steps += 1
        seen.append(versions)
        last_forward.append(latest)
    model = build()
    names = [stage.parameters for stage in run.plan.stages]
    history = [[{n: model.get_parameter(n).detach().clone() for n in each}] for each in names]
    totals: list[dict[str, torch.Tensor]] = [{} for _ in names]
    parts: list[list[float]] = [[] for _ in names]  # by stage and step
    norms: list[list[float]] = [[] for _ in names]
    for number, batch in enumerate(batches):
        for each, versions, known in zip(names, seen, history, strict=True):
            for name in each:
                model.get_parameter(name).data.copy_(known[versions[number]][name])
        model.zero_grad()
        criterion(model(batch[0]), batch).backward()
        for each, total in zip(names, totals, strict=True):
            for name in each:
                gradient = model.get_parameter(name).grad
                total[name] = total[name] + gradient if name in total else gradient.clone()
        if (number + 1) % frequency and number < len(batches) - 1:
            continue
        step = len(parts[0])
        for part, total in zip(parts, totals, strict=True):
            part.append(float(torch.cat([each.flatten() for each in total.values()]).norm()))
        for index, (known, total) in enumerate(zip(history, totals, strict=True)):
            squares = sum(parts[later][step] ** 2 for later in range(index, num_stages))
            for earlier in range(index):
                made = seen[earlier][last_forward[index][step]]
                squares += parts[earlier][made - 1] ** 2 if made else 0.0
            norms[index].append(math.sqrt(squares))
            factor = min(1.0, max_norm / (norms[index][-1] + 1e-6))
            known.append({n: known[-1][n] - LR * factor * total[n] for n in total})
            total.clear()
    for known in history:
        for name, tensor in known[-1].items():
            model.get_parameter(name).data.copy_(tensor)
    return norms, model


@pytest.mark.parametrize("nodes", [1, 3, 5])
@pytest.mark.parametrize("frequency", [1, 2])
def test_async_clips_by_what_is_known(nodes: int, frequency: int, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)
    run_cleanly(
        run,
        train,
        schedule="async",
        update_frequency=frequency,
        clip_grad_norm=0.3,
        delay_compensation=None,
        **{**SGD, "optimizer_params": {"lr": LR}},
    )
    norms, model = async_norms_and_weights(run, 0.3, frequency)
    for stage, expected in zip(run.plan.stages, norms, strict=True):
        found = [event["gradient_norm"] for event in run.events(stage.node_id, "step")]
        assert found == pytest.approx(expected, rel=1e-5)
    assert_fused(tmp_path, model)


@pytest.mark.parametrize("schedule", UNFLUSHED)
@pytest.mark.parametrize("frequency", [1, 2])
def test_shared_parameters_without_a_flush_repeat(
    frequency: int, schedule: str, tmp_path: Path
) -> None:
    """Gradients to owners, values to holders and norms cross each other without locking up."""
    found = []
    for attempt in ("one", "two"):
        run = make_plan(tmp_path / attempt, tied_harness.build(), (tied_harness.X[:3],), nodes=4)
        run_cleanly(
            run,
            lambda node: tied_harness.train(node, epochs=2),
            schedule=schedule,
            update_frequency=frequency,
            clip_grad_norm=0.3,
            optimizer=torch.optim.SGD,
            optimizer_params={"lr": LR},
            criterion=tied_harness.criterion,
        )
        found.append(tied_harness.fused(run))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_each_cluster_clips_by_its_own_norm(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=4, clusters=2)
    run_cleanly(run, lambda node: train(node, 2), clip_grad_norm=0.7, **SGD)
    norms = {
        stage.cluster_id: [e["gradient_norm"] for e in run.events(stage.node_id, "step")]
        for stage in run.plan.stages
    }
    assert len(norms) == 2
    assert norms[0][0] != norms[1][0]
    for stage in run.plan.stages:
        steps = run.events(stage.node_id, "step")
        assert [each["gradient_norm"] for each in steps] == norms[stage.cluster_id]


@pytest.mark.parametrize("schedule", UNFLUSHED)
def test_second_runs_repeat_the_first(schedule: str, tmp_path: Path) -> None:
    """Also where several stages step without waiting for each other."""
    found = []
    for attempt in ("one", "two"):
        run = make_plan(tmp_path / attempt, build(), (X[:4],), nodes=4)
        run_cleanly(run, lambda n: train(n, 2), schedule=schedule, clip_grad_norm=0.2, **SGD)
        folder = tmp_path / attempt
        found.append(model_fusion(node_data=folder / "node_data", trained=folder / "trained"))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


class Breaking(torch.autograd.Function):
    """The identity, whose gradient is not finite."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * math.inf


@pytest.mark.parametrize("schedule", ["1f1b", "async"])
def test_gradients_that_are_not_finite_end_the_run(schedule: str, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=3)
    run_nodes(
        run,
        train,
        schedule=schedule,
        clip_grad_norm=1.0,
        **{**SGD, "criterion": lambda p, t: criterion(Breaking.apply(p), t)},
    )
    leaf = run.plan.clusters[0][-1]
    assert isinstance(run.errors[leaf], TrainingError)
    cause = r"the norm of the gradients of stage 2 at step 0 is (inf|nan), .* finite: \d\.weight"
    assert len(run.errors) == 3
    assert all(re.search(cause, str(error)) for error in run.errors.values())
