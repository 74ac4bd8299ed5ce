"""Trains stages one microbatch after another, each with the weights its schedule would give it.

One process, so exact and quick: `StagePosition.version_of` says which version of its weights a
stage computes a microbatch with, forward and backward, and the optimizer steps are those of
`ravnest.stage.updating`. `tests/node/test_compensated.py` holds it against real nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import torch

from ravnest.stage.delays import mean_delay
from ravnest.stage.position import StagePosition
from ravnest.stage.updating import Updater, UpdateSettings

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class DelayedStage:
    """One stage and the versions of its weights that are still of use.

    Args:
        settings: all but the delay, which follows from the position.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        position: StagePosition,
        make_settings: Callable[[float], UpdateSettings],
    ) -> None:
        self.module = module
        self._position = position
        self._parameters = list(module.parameters())
        named = dict(module.named_parameters())
        self._updater = Updater(named, make_settings(mean_delay(position)))
        self._versions = {0: self._values()}
        self._num_steps = 0

    def enter(self, microbatch: int) -> None:
        """Puts the weights of a microbatch's passes in place."""
        version = self._position.version_of(microbatch)
        self._versions = {number: v for number, v in self._versions.items() if number >= version}
        self._put(version)

    def leave(self) -> None:
        """Puts the newest weights in place."""
        self._put(self._num_steps)

    def step(self) -> None:
        """An optimizer step on the newest weights; older ones keep their storage."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()
        self._updater.step()
        self._num_steps += 1
        self._versions[self._num_steps] = self._values()

    def _values(self) -> list[torch.Tensor]:
        return [parameter.data for parameter in self._parameters]

    def _put(self, version: int) -> None:
        for parameter, value in zip(self._parameters, self._versions[version], strict=True):
            parameter.data = value


def cut(blocks: Sequence[torch.nn.Module], num_stages: int) -> list[torch.nn.Module]:
    """The blocks in so many stages, as even as their number allows."""
    bounds = [round(k * len(blocks) / num_stages) for k in range(num_stages + 1)]
    return [torch.nn.Sequential(*blocks[a:b]) for a, b in itertools.pairwise(bounds)]


def train(
    stages: Sequence[DelayedStage],
    microbatches: Iterable[tuple[torch.Tensor, torch.Tensor]],
    loss: Loss,
    *,
    update_frequency: int = 1,
    after_step: Callable[[int], None] = lambda step: None,
) -> list[float]:
    """Trains on the microbatches in their order; returns their losses.

    Args:
        after_step: called with the number of steps made.
    """
    losses = []
    for number, (x, y) in enumerate(microbatches):
        value = x
        for stage in stages:
            stage.enter(number)
            value = stage.module(value)
        result = loss(value, y)
        result.backward()  # type: ignore[no-untyped-call]
        losses.append(result.item())
        for stage in stages:
            stage.leave()
        if (number + 1) % update_frequency == 0:
            for stage in stages:
                stage.step()
            after_step((number + 1) // update_frequency)
    return losses
