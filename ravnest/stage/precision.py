"""Precision of a stage: autocast while it computes, and the scale of losses in half precision."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext

import torch

from ravnest.errors import ConfigError, TrainingError

DYNAMIC = "dynamic"

_DTYPES: dict[object, torch.dtype] = {
    torch.bfloat16: torch.bfloat16,
    torch.float16: torch.float16,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
_FIRST, _GROWTH, _BACKOFF, _INTERVAL = 2.0**16, 2.0, 0.5, 2000  # torch.amp.GradScaler's
_SMALLEST = 2.0**-10


def parse_autocast(value: object) -> torch.dtype | None:
    """The dtype that `Node(autocast=...)` means; ConfigError for anything else."""
    if value is None:
        return None
    if not isinstance(value, (str, torch.dtype)) or value not in _DTYPES:
        raise ConfigError(
            f"autocast={value!r} is unknown; expected torch.bfloat16, torch.float16, 'bf16', "
            "'fp16' or None"
        )
    return _DTYPES[value]


def autocast_on(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Autocast for one pass, or nothing."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def check_loss_scale(value: object) -> None:
    """Raises ConfigError unless it is None, "dynamic" or a number above 0."""
    if value is None or value == DYNAMIC:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(
            f"loss_scale={value!r} is not possible; expected 'dynamic', a number above 0 or None"
        )


class LossScale:
    """What losses are multiplied by, so that gradients in float16 do not vanish.

    A step whose gradients overflow is left out. A dynamic scale is then halved, and doubled after
    2,000 steps in a row without (Micikevicius et al. 2018, "Mixed Precision Training"; the numbers
    are those of `torch.amp.GradScaler`). It follows from the steps alone, so that stages that hear
    the same of every step have the same scale.

    Args:
        setting: "dynamic", or a constant.
    """

    def __init__(self, setting: str | float) -> None:
        self._is_dynamic = setting == DYNAMIC
        self.value = _FIRST if self._is_dynamic else float(setting)
        self._num_good = 0

    def update(self, *, is_finite: bool) -> None:
        """After a step, or one left out because its gradients were not finite.

        Raises:
            TrainingError: the scale is so small that it cannot be what makes them overflow.
        """
        if not self._is_dynamic:
            return
        if is_finite:
            self._num_good += 1
            if self._num_good == _INTERVAL:
                self.value *= _GROWTH
                self._num_good = 0
            return
        self._num_good = 0
        self.value *= _BACKOFF
        if self.value < _SMALLEST:
            raise TrainingError(
                f"gradients are not finite even with a loss scale of {self.value:g}; every step "
                "since it was larger has been left out",
                hint="lower the learning rate, or use autocast='bf16', which needs no scale",
            )
