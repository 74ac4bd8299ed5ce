"""A stage's parameters and buffers as an nn.Module under the original model's names."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class StageModule(torch.nn.Module):
    """Holds the state of one stage, so that `state_dict`, `parameters` and `to` work as usual.

    Args:
        parameters: by original dotted name.
        buffers: by original dotted name, saved in the state dict.
        constants: by name, not saved.

    It has no forward of its own: what a stage computes takes named values and is run by the engine.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        buffers: Mapping[str, torch.Tensor],
        constants: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            holder, leaf = self._holder(name)
            holder.register_parameter(leaf, parameter)
        for tensors, persistent in ((buffers, True), (constants, False)):
            for name, tensor in tensors.items():
                holder, leaf = self._holder(name)
                holder.register_buffer(leaf, tensor, persistent=persistent)

    def _holder(self, name: str) -> tuple[torch.nn.Module, str]:
        *path, leaf = name.split(".")
        module: torch.nn.Module = self
        for part in path:
            child = module._modules.get(part)
            if child is None:
                child = torch.nn.Module()
                module.add_module(part, child)
            module = child
        return module, leaf
