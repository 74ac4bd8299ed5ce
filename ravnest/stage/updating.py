"""Optimizer and learning-rate scheduler of one stage, built from what the user passed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ravnest.errors import ConfigError, RavnestError, TrainingError
from ravnest.stage.compensating import Compensator
from ravnest.stage.delays import DelayCompensation, compensation_of
from ravnest.stage.groups import Groups, grouped, unmatched
from ravnest.stage.running_out import is_out_of_memory

OptimizerFactory = Callable[..., torch.optim.Optimizer]
SchedulerFactory = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """How a stage updates its weights.

    Attributes:
        optimizer: a torch.optim class, or `f(params, **optimizer_params)`.
        lr_scheduler: likewise `f(optimizer, **lr_scheduler_params)`.
        lr_step_on_epoch_change: step the scheduler once per epoch, else once per optimizer step.
        param_groups: options by pattern of a parameter's name, see `groups.grouped`.
        compensation: what to do about late gradients.
        delay: how late they are, in steps.
    """

    optimizer: OptimizerFactory | None = None
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    lr_scheduler: SchedulerFactory | None = None
    lr_scheduler_params: Mapping[str, Any] = field(default_factory=dict)
    lr_step_on_epoch_change: bool = True
    param_groups: Groups = field(default_factory=dict)
    compensation: DelayCompensation = DelayCompensation.OFF
    delay: float = 0.0


class Updater:
    """Applies accumulated gradients. A stage without trainable parameters has nothing to apply."""

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], settings: UpdateSettings
    ) -> None:
        self._settings = settings
        self.optimizer: torch.optim.Optimizer | None = None
        self.scheduler: Any = None
        self.compensator: Compensator | None = None
        self._num_steps = 0
        self._names = tuple(parameters)
        trainable = {name: each for name, each in parameters.items() if each.requires_grad}
        if settings.optimizer is None or not trainable:
            return
        given = grouped(parameters, settings.param_groups)
        with _naming(f"optimizer={_name(settings.optimizer)} cannot be made", ConfigError):
            self.optimizer = settings.optimizer(given, **settings.optimizer_params)
        if not hasattr(self.optimizer, "step") or not hasattr(self.optimizer, "zero_grad"):
            raise ConfigError(
                f"optimizer={settings.optimizer!r} returned {type(self.optimizer).__name__}, "
                "expected something with step() and zero_grad()",
                hint="pass the class, torch.optim.Adam, or f(params, **optimizer_params)",
            )
        if needed := _needed_arguments(self.optimizer.step):
            raise ConfigError(
                f"step() of the optimizer {type(self.optimizer).__name__} needs {needed}: it "
                "computes losses again by itself, which a stage of a model cannot",
                hint="pass an optimizer whose step() takes nothing, such as torch.optim.AdamW",
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
        if self.optimizer is None:
            return
        with _naming(f"lr_scheduler={_name(factory)} cannot be made", ConfigError):
            self.scheduler = factory(self.optimizer, **params)
        if needed := _needed_arguments(self.scheduler.step):
            raise ConfigError(
                f"step() of the scheduler {type(self.scheduler).__name__} needs {needed}, which "
                "not every stage knows",
                hint="pass one that goes by the number of steps or epochs alone",
            )

    def unmatched(self, patterns: Iterable[str] | None = None) -> list[str]:
        """Those of the patterns, by default of all of the settings', that match no name here."""
        return unmatched(self._settings.param_groups if patterns is None else patterns, self._names)

    def step(self, before: Mapping[str, torch.Tensor] | None = None) -> None:
        """One optimizer step from the gradients in place; they are cleared.

        Args:
            before: the values of the parameters by name, where somebody keeps them anyway.

        Raises:
            TrainingError: optimizer or scheduler failed.
        """
        if self.optimizer is None:
            return
        with _naming(f"the optimizer {_name(self.optimizer)} failed at step {self._num_steps}"):
            if self.compensator is None:
                self.optimizer.step()
            else:
                self.compensator.step(self.optimizer, before)
        self._num_steps += 1
        self.optimizer.zero_grad(set_to_none=True)
        if not self._settings.lr_step_on_epoch_change:
            self._step_scheduler(f"after step {self._num_steps - 1}")

    def drop(self) -> None:
        """Clears the gradients of a step that is left out; its scheduler does not step."""
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def end_epoch(self) -> None:
        """Steps a scheduler that counts epochs; TrainingError when it fails."""
        if self._settings.lr_step_on_epoch_change:
            self._step_scheduler(f"at the end of an epoch, after {self._num_steps} steps")

    def _step_scheduler(self, when: str) -> None:
        if self.scheduler is not None:
            with _naming(f"the scheduler {_name(self.scheduler)} failed {when}"):
                self.scheduler.step()


@contextmanager
def _naming(what: str, kind: type[RavnestError] = TrainingError) -> Iterator[None]:
    """Says what failed where an error of the user's own code would not; memory is another's."""
    try:
        yield
    except RavnestError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise kind(f"{what}: {type(error).__name__}: {error}") from error


def _needed_arguments(method: Callable[..., Any]) -> str:
    """Names of the arguments that a call must have, empty for none."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # not written in Python
        return ""
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = (p for p in parameters if p.default is p.empty and p.kind not in optional)
    return ", ".join(parameter.name for parameter in needed)


def _name(thing: object) -> str:
    return getattr(thing, "__name__", type(thing).__name__)
