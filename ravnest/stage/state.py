"""The tensors of one stage: as they are handed to it, and as they live on its device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ravnest.stage.module import StageModule
from ravnest.stage.weights import WeightVersion, WeightVersions


@dataclass(frozen=True, slots=True)
class StageState:
    """The tensors of one stage, by original name.

    Attributes:
        parameters: in the model's order.
        trainable: names that get gradients.
        buffers: persistent buffers.
        replicas: trainable parameters that another stage owns and steps.
        constants: non-persistent buffers and constants of the graph.
    """

    parameters: Mapping[str, torch.Tensor]
    trainable: frozenset[str]
    buffers: Mapping[str, torch.Tensor]
    constants: Mapping[str, torch.Tensor]
    replicas: Mapping[str, torch.Tensor] = field(default_factory=dict)


class LiveState:
    """A stage's tensors on its device, and the versions of those that steps change.

    Attributes:
        parameters: those that this stage owns, by original name, with gradients and all.
        module: all of them, as a module.
        weights, replicas: versions of what this stage owns, and of what others own.
    """

    def __init__(self, state: StageState, device: torch.device, *, keeps_previous: bool) -> None:
        self.parameters = {
            name: torch.nn.Parameter(tensor.to(device), requires_grad=name in state.trainable)
            for name, tensor in state.parameters.items()
        }
        self._buffers = {name: tensor.to(device) for name, tensor in state.buffers.items()}
        self._constants = {name: tensor.to(device) for name, tensor in state.constants.items()}
        replicas = {
            name: torch.nn.Parameter(tensor.to(device)) for name, tensor in state.replicas.items()
        }
        self.module = StageModule(self.parameters, self._buffers, self._constants | replicas)
        self.weights = WeightVersions(self.parameters, keeps_previous=keeps_previous)
        self.replicas = WeightVersions(replicas)

    def at(self, weights: WeightVersion, replicas: WeightVersion) -> dict[str, torch.Tensor]:
        """What a program computes with, in these versions."""
        return {**weights.tensors, **replicas.tensors, **self._buffers, **self._constants}

    def newest(self) -> dict[str, torch.Tensor]:
        """The same with the newest weights."""
        weights, replicas = self.weights.current(), self.replicas.current()
        return {**weights, **replicas, **self._buffers, **self._constants}

    def averaged(self) -> dict[str, torch.Tensor]:
        """Live parameters and persistent buffers by name, safe to overwrite in place.

        Stashed versions keep their own storage (see `WeightVersions.begin_update`).
        """
        self.weights.begin_update()
        return {name: p.data for name, p in self.parameters.items()} | self._buffers

    def saved(self) -> dict[str, torch.Tensor]:
        """Parameters and persistent buffers by original name, on the CPU, to be written at once.

        On the CPU they are the live tensors: a copy would be the peak of many a stage's memory.
        """
        tensors = {**self.parameters, **self._buffers}
        return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
