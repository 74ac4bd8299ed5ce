"""What `outer_optimizer=...` names. In stage, so that rounds and the planner mean the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ravnest.errors import ConfigError

OptimizerFactory = Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class OuterSettings:
    """The optimizer of the weights that all clusters share, one step per averaging round.

    Attributes:
        factory: a torch.optim class, or `f(params, **params)`.
        params: keyword arguments for it.
        text: both in words, alike in every process that was given the same.
    """

    factory: OptimizerFactory
    params: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


class OuterSGD(torch.optim.Optimizer):
    """SGD whose bits do not depend on the processor: every operation of it is rounded by itself.

    Unequal members make the same step each, and their weights have to stay the same bytes. torch's
    kernels multiply and add in one go where a processor can, with one rounding less. The update is
    that of `torch.optim.SGD`: `buffer = momentum * buffer + gradient`, then the weights move
    against the buffer, or with `nesterov` against `gradient + momentum * buffer`.

    Args:
        lr: with 1 and no momentum the weights become the mean of the members'.
        momentum: 0 for none; keeps no state then.
    """

    def __init__(
        self, params: Any, lr: float = 1.0, momentum: float = 0.0, nesterov: bool = False
    ) -> None:
        for name, value in (("lr", lr), ("momentum", momentum)):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value < float("inf"):
                raise ValueError(f"{name} is {value!r}, expected a finite number from 0 on")
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0")
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step from the gradients in place; parameters without one stay as they are."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)

    def _step_one(self, parameter: torch.Tensor, group: Mapping[str, Any]) -> None:
        gradient, momentum = parameter.grad, group["momentum"]
        assert gradient is not None
        direction = gradient
        if momentum:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = gradient.clone()
            else:
                state["momentum_buffer"].mul_(momentum).add_(gradient)
            direction = state["momentum_buffer"]
            if group["nesterov"]:
                direction = (direction * momentum).add_(gradient)
        parameter.sub_(direction if group["lr"] == 1.0 else direction * group["lr"])


_NAMED: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"lr": 1.0, "momentum": 0.0},
    "nesterov": {"lr": 0.7, "momentum": 0.9, "nesterov": True},
}


def parse_outer(
    optimizer: Any, params: Mapping[str, Any] | None, *, is_compressed: bool = False
) -> OuterSettings | None:
    """The outer optimizer that a user named; None: rounds average the weights themselves.

    Args:
        optimizer: None, "sgd" (rate 1: the plain mean), "nesterov" (rate 0.7, momentum 0.9:
            Douillard et al. 2023, "DiLoCo"), a torch.optim class, or `f(params, **params)`.
        params: keyword arguments for it; of the named ones they replace the defaults.
        is_compressed: rounds are compressed. They exchange changes then, never weights, so that
            None means "sgd".

    Raises:
        ConfigError: it is none of these, or cannot be made of the params.
    """
    given = dict(params or {})
    if optimizer is None and not is_compressed:
        if given:
            raise ConfigError(
                f"outer_optimizer_params={given!r} without outer_optimizer: they would do nothing",
                hint="pass outer_optimizer='nesterov' or a torch.optim class as well",
            )
        return None
    name = "sgd" if optimizer is None else optimizer
    if isinstance(name, str):
        if name not in _NAMED:
            choices = ", ".join(map(repr, _NAMED))
            raise ConfigError(
                f"outer_optimizer={name!r} is unknown; expected None, one of {choices}, "
                "a torch.optim class or a function of parameters"
            )
        factory: OptimizerFactory = OuterSGD
        given = {**_NAMED[name], **given}
    elif callable(name):
        factory = name
    else:
        raise ConfigError(
            f"outer_optimizer={name!r} cannot be called; expected None, a name, a torch.optim "
            "class or a function of parameters",
            hint="pass the class itself, outer_optimizer=torch.optim.SGD, not a call of it",
        )
    settings = OuterSettings(factory, given, _in_words(factory, given))
    if factory is OuterSGD:  # others may want parameters of another kind than this
        make_outer(settings, [torch.nn.Parameter(torch.zeros(1))])
    return settings


def make_outer(
    settings: OuterSettings, parameters: list[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """The optimizer over parameters; ConfigError when it cannot be made or is none."""
    what = f"outer_optimizer={_name(settings.factory)}"
    try:
        made = settings.factory(parameters, **settings.params)
    except Exception as error:
        raise ConfigError(f"{what} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(
            f"{what} returned {type(made).__name__}, expected a torch.optim.Optimizer",
            hint="pass the class, torch.optim.SGD, or f(params, **outer_optimizer_params)",
        )
    return made


def _in_words(factory: OptimizerFactory, params: Mapping[str, Any]) -> str:
    """Never an address: the same in every process."""
    plain = (bool, int, float, str, tuple, list, type(None))
    shown = ", ".join(
        f"{key}={value!r}" if isinstance(value, plain) else f"{key}={type(value).__name__}"
        for key, value in sorted(params.items())
    )
    return f"{_name(factory)}({shown})"


def _name(factory: OptimizerFactory) -> str:
    module = getattr(factory, "__module__", type(factory).__module__)
    return f"{module}.{getattr(factory, '__qualname__', type(factory).__qualname__)}"
