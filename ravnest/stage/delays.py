"""How late the gradients of a stage are, and which compensation that calls for."""

from __future__ import annotations

import logging
from enum import StrEnum

import torch

from ravnest.errors import ConfigError
from ravnest.stage.compensating import Compensation, momentum_is_known
from ravnest.stage.position import StagePosition

logger = logging.getLogger(__name__)

MEMORY = 0.98
HORIZON = 4.0
WARM_UP_STEPS = 60
_NESTEROV = 0.99
_ADAPTIVE = (torch.optim.Adam, torch.optim.AdamW)


class DelayCompensation(StrEnum):
    """What a stage does about gradients that are older than the weights they update.

    OFF: nothing.
    AUTO: LEAD where gradients are late, nothing elsewhere.
    LEAD: an average of the optimizer's changes, looked ahead by a little more than the delay, with
        shorter first steps. Of all of these the closest to synchronous training; chosen by
        `benchmarks.convergence`.
    NESTEROV: momentum with a memory of up to 0.99, looked ahead by one step (Ajanthan et al. 2025).
    PREDICTION: the last change, repeated once per step of delay (SpecTrain, XPipe, PipeMare).
    WARM_UP: shorter first steps alone (PipeMare).
    """

    OFF = "off"
    AUTO = "auto"
    LEAD = "lead"
    NESTEROV = "nesterov"
    PREDICTION = "prediction"
    WARM_UP = "warm_up"

    @classmethod
    def parse(cls, name: str | None) -> DelayCompensation:
        """The one of that name, OFF for None; ConfigError naming the choices otherwise."""
        if name is None:
            return cls.OFF
        try:
            return cls(name)
        except ValueError:
            choices = ", ".join(repr(str(choice)) for choice in cls)
            raise ConfigError(
                f"delay_compensation={name!r} is unknown; expected None or one of {choices}"
            ) from None

    def for_delay(self, delay: float, *, momentum_is_known: bool = True) -> Compensation | None:
        """How changes are corrected that gradients of so many steps ago have led to.

        Args:
            delay: steps, on average over the microbatches of a step.
            momentum_is_known: of the optimizer. One that is not cannot be replaced, and a second
                average behind it would add to the delay: changes are extrapolated as they are.

        Returns:
            None when there is nothing to correct.
        """
        warm_up = round(WARM_UP_STEPS * delay)
        if delay <= 0.0 or self is DelayCompensation.OFF:
            return None
        match self:
            case DelayCompensation.WARM_UP:
                return Compensation(0.0, 0.0, delay, warm_up_steps=warm_up)
            case DelayCompensation.PREDICTION:
                return Compensation(0.0, delay, delay)
            case DelayCompensation.NESTEROV:
                return Compensation(_NESTEROV, _NESTEROV, delay, replaces_momentum=True)
        if not momentum_is_known:
            return Compensation(0.0, delay, delay, warm_up_steps=warm_up)
        return Compensation(
            MEMORY, HORIZON + delay, delay, replaces_momentum=True, warm_up_steps=warm_up
        )


def mean_delay(position: StagePosition) -> float:
    """Steps between the weights of a gradient and its use, the mean over a step in the long run."""
    step = position.num_stages + 1  # far enough from the start of an epoch for every schedule
    first = step * position.update_frequency
    microbatches = range(first, first + position.update_frequency)
    late = [step - position.version_of(microbatch) for microbatch in microbatches]
    return sum(late) / len(late)


def compensation_of(
    method: DelayCompensation, delay: float, optimizer: torch.optim.Optimizer
) -> Compensation | None:
    """What `method` does for this optimizer; warns when it leaves Adam with late gradients."""
    if method is DelayCompensation.OFF and delay > 1.0 and isinstance(optimizer, _ADAPTIVE):
        logger.warning(
            "%s uses gradients that are %.3g steps old, uncorrected: expect a loss that is behind "
            "synchronous training by a tenth and more at equal steps, and a smaller rate that is "
            "still stable; delay_compensation='auto' repairs most of it",
            type(optimizer).__name__,
            delay,
        )
    return method.for_delay(delay, momentum_is_known=momentum_is_known(optimizer))
