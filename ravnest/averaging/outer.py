"""The weights that all members share between rounds, and the optimizer that moves them.

Knows no peer: a round brings the mean pseudo-gradient, the same bytes on every member.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch

from ravnest.averaging.shadow import accumulator_of
from ravnest.errors import AveragingError
from ravnest.stage.outer import OuterSettings, make_outer
from ravnest.wire.checksum import checksum


class OuterOptimizer:
    """Anchors: what all members had after the last round, in the dtype of averaging.

    Members train away from the anchor. In a round they exchange how far they have come (anchor
    minus local weights, the pseudo-gradient), and a step along the mean of that makes the next
    anchor (Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language
    Models"; Reddi et al. 2021, "Adaptive Federated Optimization"). Anchors and state are in host
    memory, wherever the stage computes.

    Args:
        settings: the optimizer.
        parameters: initial weights by name, of the trainable parameters alone; copied.

    Attributes:
        text: the optimizer in words, alike on all members.
        anchors: by name, of the parameters' shapes; never written outside of `step`.
    """

    def __init__(self, settings: OuterSettings, parameters: Mapping[str, torch.Tensor]) -> None:
        self.text = settings.text
        self.anchors: Mapping[str, torch.nn.Parameter] = {
            name: torch.nn.Parameter(_anchor_of(name, tensor))
            for name, tensor in parameters.items()
        }
        made = make_outer(settings, list(self.anchors.values())) if self.anchors else None
        self._optimizer = made

    def step(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Moves the anchors that have a gradient, by the mean pseudo-gradient of a round.

        Args:
            gradients: by name, of the anchor's dtype and shape; may be overwritten.

        Raises:
            AveragingError: the optimizer failed.
        """
        if self._optimizer is None:
            return
        for name, gradient in gradients.items():
            self.anchors[name].grad = gradient
        try:
            self._optimizer.step()
        except Exception as error:
            raise AveragingError(
                f"the outer optimizer {self.text} failed: {type(error).__name__}: {error}",
                hint="its step() must take nothing and need nothing but gradients",
            ) from error
        for name in gradients:
            self.anchors[name].grad = None

    def state_of(self, name: str) -> dict[str, torch.Tensor]:
        """What the optimizer keeps of one parameter."""
        state = {} if self._optimizer is None else self._optimizer.state[self.anchors[name]]
        return {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}

    def digest(self, names: Iterable[str]) -> str:
        """A hash over the anchors of some of the names; others are passed over."""
        found = hashlib.sha256()
        for name in names:
            if name in self.anchors:
                found.update(f"{name} {_checksum(self.anchors[name])};".encode())
        return found.hexdigest()[:16]


def _anchor_of(name: str, tensor: torch.Tensor) -> torch.Tensor:
    dtype = accumulator_of(name, tensor)
    if tensor.is_complex():
        dtype = torch.complex128 if dtype is torch.float64 else torch.complex64
    return torch.empty(tensor.shape, dtype=dtype).copy_(tensor.detach())


def _checksum(anchor: torch.Tensor) -> int:
    flat = anchor.detach().reshape(-1)
    return checksum(flat.view(torch.uint8).numpy().data) if flat.numel() else 0
