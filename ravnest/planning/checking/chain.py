"""Runs loaded stages one after another in this process, as the nodes of a cluster would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ravnest.capture.stage_file import LoadedStage
from ravnest.capture.values import ValueSpec


@dataclass(frozen=True, slots=True)
class _Run:
    """One stage's training pass."""

    stage: LoadedStage
    state: Mapping[str, torch.Tensor]
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]


class TrainingPass:
    """A forward pass over all stages in training mode; `backward` completes it.

    Random operators draw from the default generator in order, as those of the model do; the
    stages' buffers stay as they are.

    Args:
        stages: from root to leaf.
        inputs: tensors by wire name.
    """

    def __init__(self, stages: Sequence[LoadedStage], inputs: Mapping[str, torch.Tensor]) -> None:
        self._runs: list[_Run] = []
        values: Mapping[str, Any] = inputs
        with torch.enable_grad():
            for stage in stages:
                state = _fresh_state(stage)
                given = {spec.name: _received(spec, values) for spec in stage.train.inputs}
                values = stage.train(state, given, _keep_generator)
                self._runs.append(_Run(stage, state, given, values))
        self.outputs = list(values.values())

    @property
    def buffers(self) -> dict[str, torch.Tensor]:
        """Buffers as this pass left them, those that are not saved included."""
        return {
            name: run.state[name]
            for run in self._runs
            for name in (*run.stage.constants, *run.stage.buffers)
        }

    def backward(self, cotangents: Sequence[torch.Tensor | None]) -> dict[str, torch.Tensor]:
        """Gradients of the trainable parameters by name, those that have one; of replicas summed.

        Args:
            cotangents: gradients of the outputs, None where there is none.
        """
        leaf = self._runs[-1].stage.train.outputs
        arrived = {spec.name: c for spec, c in zip(leaf, cotangents, strict=True)}
        for run in reversed(self._runs):
            pairs = [
                (value, gradient)
                for name, value in run.outputs.items()
                if (gradient := arrived.get(name)) is not None and value.requires_grad
            ]
            if pairs:
                torch.autograd.backward([v for v, _ in pairs], [g for _, g in pairs])
            arrived = {n: v.grad for n, v in run.inputs.items() if isinstance(v, torch.Tensor)}
        found: dict[str, torch.Tensor] = {}
        for run in self._runs:
            for name in (*run.stage.trainable, *run.stage.replicas):
                if (gradient := run.state[name].grad) is not None:
                    found[name] = found[name] + gradient if name in found else gradient
        return found


def evaluate(stages: Sequence[LoadedStage], inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """The outputs of all stages in evaluation mode."""
    values: Mapping[str, Any] = inputs
    with torch.no_grad():
        for stage in stages:
            parameters = {**stage.parameters, **stage.replicas}
            state = {**parameters, **_copied(stage.buffers), **_copied(stage.constants)}
            values = stage.eval(state, values, _keep_generator)
    return list(values.values())


def _fresh_state(stage: LoadedStage) -> dict[str, torch.Tensor]:
    parameters = {
        name: tensor.detach().requires_grad_(name in stage.trainable or name in stage.replicas)
        for name, tensor in (*stage.parameters.items(), *stage.replicas.items())
    }
    return {**parameters, **_copied(stage.buffers), **_copied(stage.constants)}


def _copied(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _received(spec: ValueSpec, values: Mapping[str, Any]) -> Any:
    """A value as it comes off the wire: contiguous, and a leaf of this stage's autograd graph."""
    value = values[spec.name]
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().contiguous().requires_grad_(spec.differentiable)


def _keep_generator(position: int) -> None:
    """In place of the keyed seed of a random operator: the generator goes on."""
