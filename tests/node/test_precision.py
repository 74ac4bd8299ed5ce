"""Autocast, bfloat16 weights and float16 with a loss scale, against one process of plain torch."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import Run, make_plan, run_cleanly, run_nodes
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, model_fusion
from ravnest.errors import ConfigError
from ravnest.stage.schedule import Schedule

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))
LR = 0.05


class Net(torch.nn.Module):
    """Linear layers around a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)
        self.two, self.three = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.four = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.norm(self.one(x)))
        return self.four(torch.tanh(self.three(torch.tanh(self.two(x)))))


def build() -> Net:
    torch.manual_seed(0)
    return Net()


def in_bfloat16() -> Net:
    """Weights in bfloat16, BatchNorm with its statistics in float32."""
    model = build().to(torch.bfloat16)
    model.norm.float()
    return model


def loader(dtype: torch.dtype = torch.float32) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X.to(dtype), Y), batch_size=4)


def criterion(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions, targets[1])


def strong(predictions: torch.Tensor, targets: Any) -> torch.Tensor:
    """Its gradients overflow in float16 with the first loss scales."""
    return 300 * criterion(predictions, targets)


SGD: dict[str, Any] = {
    "optimizer": torch.optim.SGD,
    "optimizer_params": {"lr": LR, "momentum": 0.9},
    "criterion": criterion,
}


def train(node: Node, dtype: torch.dtype = torch.float32) -> None:
    Trainer(node, train_loader=loader(dtype), save=True).train()


def assert_fused(run: Run, model: torch.nn.Module) -> None:
    fused = model_fusion(node_data=run.folder / "node_data", trained=run.folder / "trained")
    for name, tensor in model.state_dict().items():
        assert fused[name].dtype == tensor.dtype
        torch.testing.assert_close(fused[name], tensor, atol=1e-6, rtol=0, msg=name)


def reference(model: Net, autocast: torch.dtype | None = None) -> Net:
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for batch in loader(model.two.weight.dtype):
        with torch.autocast("cpu", autocast) if autocast else contextlib.nullcontext():
            loss = criterion(model(batch[0]), batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("recompute", [False, True])
def test_autocast_equals_one_process(nodes: int, recompute: bool, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)
    crossed: set[torch.dtype] = set()

    def script(node: Node) -> None:
        links = node._parts.links
        send = links.send_forward

        def noting(frame: Any) -> None:
            if node.plan.forward_target is not None:
                crossed.update(tensor.dtype for tensor in frame.tensors.values())
            send(frame)

        links.send_forward = noting  # type: ignore[method-assign]
        train(node)

    run_cleanly(run, script, autocast="bf16", recompute=recompute, **SGD)
    model = reference(build(), torch.bfloat16)
    assert_fused(run, model)
    assert model.norm.running_mean.dtype is torch.float32  # type: ignore[union-attr]
    assert (torch.bfloat16 in crossed) == (nodes > 1), "what autocast made crosses as it is"
    with pytest.raises(AssertionError):
        assert_fused(run, reference(build()))


def test_autocast_is_each_nodes_own(tmp_path: Path) -> None:
    """The leaf alone computes in bfloat16; evaluation there does so, too."""
    run = make_plan(tmp_path, build(), (X[:4],), nodes=2)

    def script(node: Node) -> Any:
        if node.plan.is_leaf:
            node._parts.engine._autocast = torch.bfloat16
        train(node)
        return Trainer(node).pred(X[:4])

    run_cleanly(run, script, **SGD)
    assert run.result_of(0).dtype is torch.bfloat16
    with pytest.raises(AssertionError):
        assert_fused(run, reference(build()))
    with pytest.raises(AssertionError):
        assert_fused(run, reference(build(), torch.bfloat16))


@pytest.mark.parametrize("nodes", [1, 3])
def test_bfloat16_weights_with_statistics_in_float32(nodes: int, tmp_path: Path) -> None:
    run = make_plan(tmp_path, in_bfloat16(), (X[:4].bfloat16(),), nodes=nodes)
    run_cleanly(run, lambda node: train(node, torch.bfloat16), **SGD)
    model = reference(in_bfloat16())
    assert_fused(run, model)
    assert model.norm.running_var.dtype is torch.float32  # type: ignore[union-attr]
    assert model.two.weight.dtype is torch.bfloat16


def scaled_reference(max_norm: float | None) -> tuple[Net, float, list[bool]]:
    """float16 with torch's own scaler; its last scale, and which steps were made."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR / 300, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    made = []
    for batch in loader():
        with torch.autocast("cpu", torch.float16):
            loss = strong(model(batch[0]), batch)
        scaler.scale(loss).backward()
        if max_norm is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        made.append(scaler.get_scale() >= before)
        optimizer.zero_grad()
    return model, scaler.get_scale(), made


@pytest.mark.parametrize("schedule", [str(each) for each in Schedule if each.is_flushed])
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("max_norm", [None, 100.0])
def test_float16_with_a_dynamic_scale_equals_torchs_scaler(
    nodes: int, max_norm: float | None, schedule: str, tmp_path: Path
) -> None:
    """Some steps overflow; every stage leaves out the same ones, and all end with one scale."""
    run = make_plan(tmp_path, build(), (X[:4],), nodes=nodes)

    def script(node: Node) -> float | None:
        train(node)
        return node._parts.engine.loss_scale

    options = {**SGD, "criterion": strong, "optimizer_params": {"lr": LR / 300, "momentum": 0.9}}
    run_cleanly(
        run,
        script,
        schedule=schedule,
        autocast="fp16",
        loss_scale="dynamic",
        clip_grad_norm=max_norm,
        **options,
    )
    model, scale, made = scaled_reference(max_norm)
    assert 0 < made.count(False) < len(made)
    assert set(run.results.values()) == {scale}
    assert_fused(run, model)
    for stage in run.plan.stages:
        norms = [event["gradient_norm"] for event in run.events(stage.node_id, "step")]
        assert [isinstance(norm, float) for norm in norms] == made
    for node_id in {run.plan.clusters[0][0], run.plan.clusters[0][-1]}:
        (ledger,) = run.events(node_id, "ledger")
        assert ledger["left_out"] == f"0-{made.count(False) - 1}", "the first ones overflow"


def test_gradients_that_overflow_for_ever_end_the_run(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=2)

    def script(node: Node) -> None:
        Trainer(node, train_loader=loader(), epochs=4).train()

    options = {**SGD, "criterion": lambda p, t: criterion(p, t) * float("inf")}
    run_nodes(run, script, autocast=torch.float16, loss_scale="dynamic", **options)
    assert len(run.errors) == 2
    words = "gradients are not finite even with a loss scale of 0.000488281"
    for error in run.errors.values():
        assert words in str(error)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"autocast": "int8"}, "autocast='int8' is unknown; expected torch.bfloat16"),
        ({"autocast": torch.float32}, "autocast=torch.float32 is unknown"),
        ({"loss_scale": "static"}, "loss_scale='static' is not possible; expected 'dynamic'"),
        ({"loss_scale": -1}, "loss_scale=-1 is not possible"),
        ({"loss_scale": 8.0, "schedule": "async"}, "loss_scale=8.0 needs a schedule that flushes"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    run = make_plan(tmp_path, build(), (X[:4],), nodes=1)
    run_nodes(run, lambda node: None, **options)
    with pytest.raises(ConfigError, match=words):
        raise run.errors[0]
