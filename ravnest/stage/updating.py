"""Optimizer and learning-rate scheduler of one stage, built from what the user passed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ravnest.errors import ConfigError
from ravnest.stage.compensating import Compensator
from ravnest.stage.delays import DelayCompensation, compensation_of

OptimizerFactory = Callable[..., torch.optim.Optimizer]
SchedulerFactory = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """How a stage updates its weights.

    Attributes:
        optimizer: a torch.optim class, or `f(params, **optimizer_params)`.
        lr_scheduler: likewise `f(optimizer, **lr_scheduler_params)`.
        lr_step_on_epoch_change: step the scheduler once per epoch, else once per optimizer step.
        compensation: what to do about late gradients.
        delay: how late they are, in steps.
    """

    optimizer: OptimizerFactory | None = None
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    lr_scheduler: SchedulerFactory | None = None
    lr_scheduler_params: Mapping[str, Any] = field(default_factory=dict)
    lr_step_on_epoch_change: bool = True
    compensation: DelayCompensation = DelayCompensation.OFF
    delay: float = 0.0


class Updater:
    """Applies accumulated gradients. A stage without trainable parameters has nothing to apply."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], settings: UpdateSettings) -> None:
        self._settings = settings
        trainable = [parameter for parameter in parameters if parameter.requires_grad]
        self.optimizer: torch.optim.Optimizer | None = None
        self.scheduler: Any = None
        self.compensator: Compensator | None = None
        if settings.optimizer is None or not trainable:
            return
        self.optimizer = settings.optimizer(trainable, **settings.optimizer_params)
        if not hasattr(self.optimizer, "step") or not hasattr(self.optimizer, "zero_grad"):
            raise ConfigError(
                f"optimizer={settings.optimizer!r} returned {type(self.optimizer).__name__}, "
                "expected something with step() and zero_grad()",
                hint="pass the class, torch.optim.Adam, or f(params, **optimizer_params)",
            )
        found = compensation_of(settings.compensation, settings.delay, self.optimizer)
        if found is not None:
            self.compensator = Compensator(trainable, found)
        if settings.lr_scheduler is not None:
            self.set_scheduler(settings.lr_scheduler, settings.lr_scheduler_params)

    def set_scheduler(self, factory: SchedulerFactory, params: Mapping[str, Any]) -> None:
        """Gives the optimizer a learning-rate scheduler; ConfigError when it has one already."""
        if self.scheduler is not None:
            raise ConfigError(
                "there are two learning-rate schedulers, one from Node and one from Trainer",
                hint="pass lr_scheduler to one of them",
            )
        if self.optimizer is not None:
            self.scheduler = factory(self.optimizer, **params)

    def step(self) -> None:
        """One optimizer step from the gradients in place; they are cleared."""
        if self.optimizer is None:
            return
        if self.compensator is None:
            self.optimizer.step()
        else:
            self.compensator.step(self.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None and not self._settings.lr_step_on_epoch_change:
            self.scheduler.step()

    def end_epoch(self) -> None:
        """Steps a scheduler that counts epochs."""
        if self.scheduler is not None and self._settings.lr_step_on_epoch_change:
            self.scheduler.step()
