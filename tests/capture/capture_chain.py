"""Runs loaded stages one after another, as nodes would, and the original model beside them."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ravnest.capture.exporting import CapturedModel
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import LoadedStage, load_stage, write_stage
from ravnest.plan.structure import flatten, unflatten


def seed_operator(position: int) -> None:
    torch.manual_seed(1000 + position)


def through_files(captured: CapturedModel, cuts: Sequence[int]) -> list[LoadedStage]:
    """Splits, writes and loads again."""
    with tempfile.TemporaryDirectory() as folder:
        stages = split(captured, cuts)
        for stage in stages:
            write_stage(stage, Path(folder, str(stage.index)))
        return [load_stage(Path(folder, str(stage.index))) for stage in stages]


def even_cuts(captured: CapturedModel, num_stages: int) -> list[int]:
    """Legal cuts spread over the graph; fewer when there are not as many."""
    legal = [cut.position for cut in captured.costs.cuts]
    wanted = [captured.costs.num_positions * k / num_stages for k in range(1, num_stages)]
    return sorted({min(legal, key=lambda p: abs(p - w)) for w in wanted}) if legal else []


def loss_of(output: Any) -> torch.Tensor:
    """A scalar that every floating output that has a gradient takes part in."""
    total = torch.zeros(())
    for i, leaf in enumerate(flatten(output)[0]):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            total = total + (i + 1) * (leaf.float() ** 2).mean()
    return total


@dataclass
class Result:
    """What one training pass gave."""

    output: Any
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def train_chain(stages: Sequence[LoadedStage], args: Any, kwargs: Mapping[str, Any]) -> Result:
    """Forward over all stages, loss on the leaf, backward over all stages."""
    values: dict[str, Any] = dict(stages[0].signature.bind(args, kwargs))
    states, records = [], []
    for stage in stages:
        owned = stage.parameters | stage.buffers | stage.replicas
        state = {n: t.clone() for n, t in owned.items()}
        for name in (*stage.trainable, *stage.replicas):
            state[name].requires_grad_()
        state |= {n: t.clone() for n, t in stage.constants.items()}
        inputs = {}
        for spec in stage.train.inputs:
            value = values[spec.name]
            if spec.is_tensor:
                assert value.dtype == spec.dtype
                value = value.detach().contiguous().clone().requires_grad_(spec.differentiable)
            else:
                assert isinstance(value, int | float)
            inputs[spec.name] = value
        with torch.enable_grad():
            values = stage.train(state, inputs, seed_operator)
        assert list(values) == [spec.name for spec in stage.train.outputs]
        for spec in stage.train.outputs:
            if spec.is_tensor:
                assert values[spec.name].requires_grad == spec.differentiable, spec
        states.append(state)
        records.append((inputs, values))
    output = unflatten(stages[-1].train.output_structure, list(values.values()))
    _backward(stages, records, output)
    gradients: dict[str, torch.Tensor] = {}
    for stage, state in zip(stages, states, strict=True):
        for name in (*stage.trainable, *stage.replicas):
            if (gradient := state[name].grad) is not None:
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
    buffers = {n: s[n] for stage, s in zip(stages, states, strict=True) for n in stage.buffers}
    return Result(output, gradients, buffers)


def _backward(stages: Sequence[LoadedStage], records: list[Any], output: Any) -> None:
    loss_of(output).backward(retain_graph=False)
    arrived = {n: v.grad for n, v in records[-1][0].items() if isinstance(v, torch.Tensor)}
    for stage, (inputs, outputs) in zip(reversed(stages[:-1]), reversed(records[:-1]), strict=True):
        pairs = [
            (outputs[spec.name], arrived[spec.name])
            for spec in stage.train.outputs
            if spec.differentiable and arrived[spec.name] is not None
        ]
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        arrived = {n: v.grad for n, v in inputs.items() if isinstance(v, torch.Tensor)}


def eval_chain(stages: Sequence[LoadedStage], args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The model's output in eval mode."""
    values: dict[str, Any] = dict(stages[0].signature.bind(args, kwargs))
    with torch.no_grad():
        for stage in stages:
            state = {**stage.parameters, **stage.buffers, **stage.replicas, **stage.constants}
            values = stage.eval(state, values, seed_operator)
    return unflatten(stages[-1].eval.output_structure, list(values.values()))


_RANDOM = ("dropout", "dropout2d", "scaled_dot_product_attention", "multi_head_attention_forward")


class SeededLike(TorchFunctionMode):
    """Seeds the original model's k-th random operator like the stages seed theirs."""

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__()
        self.remaining = list(positions)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in _RANDOM:
            seed_operator(self.remaining.pop(0))
        return func(*args, **(kwargs or {}))


def random_positions(captured: CapturedModel) -> list[int]:
    """Positions of the random operators of the train graph."""
    nodes = captured.train.computing
    return [n.meta["random_position"] for n in nodes if "random_position" in n.meta]


def train_original(
    model: nn.Module, captured: CapturedModel, args: Any, kwargs: Mapping[str, Any]
) -> Result:
    """The same pass on the untouched model."""
    model = copy.deepcopy(model)
    with SeededLike(random_positions(captured)) as seeds:
        output = model(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    assert not seeds.remaining
    loss_of(output).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return Result(output, gradients, dict(model.named_buffers()))


def assert_same(actual: Any, expected: Any) -> None:
    """Equal nesting and equal leaves, tensors to the rounding of a reordered sum."""
    left, shape = flatten(actual)
    right, wanted = flatten(expected)
    assert shape == wanted
    for one, other in zip(left, right, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
        else:
            assert one == other
