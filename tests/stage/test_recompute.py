"""Recomputing a stage's forward pass gives the very bits of keeping it, and keeps nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ravnest.capture.exporting import capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import LoadedStage, load_stage, write_stage
from ravnest.plan.identity import MicrobatchId
from ravnest.stage.engine import StageEngine
from ravnest.stage.randomness import KeyedRandomness
from ravnest.stage.state import StageState
from ravnest.stage.updating import UpdateSettings

CPU = torch.device("cpu")
NUM_MICROBATCHES = 4


class Sensitive(nn.Module):
    """Dropout, BatchNorm, and a buffer whose value counts and which every pass writes by a view."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 5)
        self.drop = nn.Dropout(0.4)
        self.register_buffer("scale", torch.ones(2, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(torch.relu(self.norm(self.one(x))))
        if self.training:
            self.scale[0].mul_(0.9).add_(x.detach().mean(0))
        return self.two(x * self.scale[0].clone())


@pytest.fixture
def stage(tmp_path: Path) -> LoadedStage:
    torch.manual_seed(0)
    captured = capture_model(Sensitive(), (torch.randn(8, 6),))
    write_stage(split(captured, ())[0], tmp_path)
    return load_stage(tmp_path)


def engine_of(stage: LoadedStage, *, recompute: bool) -> StageEngine:
    state = StageState(
        {name: each.clone() for name, each in stage.parameters.items()},
        stage.trainable,
        {name: each.clone() for name, each in stage.buffers.items()},
        stage.constants,
    )
    return StageEngine(
        stage.train, stage.eval, state, device=CPU, randomness=KeyedRandomness(7, 0, CPU),
        settings=UpdateSettings(torch.optim.Adam, {"lr": 0.05}), recompute=recompute,
    )  # fmt: skip


def train(engine: StageEngine, *, is_leaf: bool) -> list[dict[str, torch.Tensor]]:
    """All forward passes, half the backward passes, a step, the other half, a step."""
    draw = torch.Generator().manual_seed(1)
    (spec,) = engine._train.inputs
    (output,) = engine._train.outputs
    found: list[dict[str, torch.Tensor]] = []

    def loss(outputs: Any) -> torch.Tensor:
        noisy = nn.functional.dropout(outputs[output.name], 0.5)
        return (noisy**2).mean()

    ids = [MicrobatchId(0, index) for index in range(NUM_MICROBATCHES)]
    for each in ids:
        x = torch.randn(8, 6, generator=draw)
        found.append(dict(engine.forward(each, {spec.name: x}, loss if is_leaf else None)))
    for each in ids:
        gradient = None if is_leaf else {output.name: torch.randn(8, 5, generator=draw)}
        engine.backward(each, gradient)
        if each.index % 2:
            found.append({name: p.grad.clone() for name, p in engine.parameters.items()})
            engine.step()
    found.append({name: value.clone() for name, value in engine.saved_state().items()})
    return found


@pytest.mark.parametrize("is_leaf", [False, True])
def test_outputs_gradients_buffers_and_weights_are_bitwise_equal(
    stage: LoadedStage, is_leaf: bool
) -> None:
    kept = train(engine_of(stage, recompute=False), is_leaf=is_leaf)
    again = train(engine_of(stage, recompute=True), is_leaf=is_leaf)
    assert len(kept) == len(again) == NUM_MICROBATCHES + 3
    for one, other in zip(kept, again, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_written_state_is_known(stage: LoadedStage) -> None:
    norm = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert stage.train.written == norm | {"scale"}
    assert stage.eval.written == frozenset()


def test_buffers_are_updated_once_per_microbatch(stage: LoadedStage) -> None:
    engine = engine_of(stage, recompute=True)
    train(engine, is_leaf=True)
    assert engine.saved_state()["norm.num_batches_tracked"] == NUM_MICROBATCHES


def saved_bytes(engine: StageEngine) -> int:
    """Bytes of activations that autograd still holds after a forward pass."""
    held: dict[int, Any] = {}
    alive: set[int] = set()

    class Saved:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor.detach()  # with its graph it would hold itself
            held[id(self)] = tensor.nbytes
            alive.add(id(self))

        def __del__(self) -> None:
            alive.discard(id(self))

    (spec,) = engine._train.inputs
    with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
        engine.forward(MicrobatchId(0, 0), {spec.name: torch.randn(8, 6)})
    assert held, "the forward pass must have saved something at all"
    return sum(held[each] for each in alive)


def test_no_graph_is_kept(stage: LoadedStage) -> None:
    assert saved_bytes(engine_of(stage, recompute=False)) > 0
    assert saved_bytes(engine_of(stage, recompute=True)) == 0
