"""The device of a stage: whether it can be used, and how a batch gets there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ravnest.errors import ConfigError
from ravnest.stage.copying import copied_in_order

logger = logging.getLogger("ravnest")


def usable_device(device: torch.device | str) -> torch.device:
    """The device, with its index.

    Raises:
        ConfigError: it is unknown, or cannot hold a tensor here.
    """
    try:
        return torch.empty(1, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"device={str(device)!r} cannot be used: {reason}",
            hint="pass device='cpu', or one that torch finds on this machine",
        ) from error


def warn_unplanned(device: torch.device, planned: str | None) -> None:
    """Says when memory and times of the plan are those of another kind of device."""
    if planned is not None and planned.split(":")[0] != device.type:
        logger.warning(
            "planned for device %r (node_configs.json), but computes on %r; memory and times of "
            "the plan are not those of this run. Pass Node(device=%r), or change the file and plan "
            "again",
            *(planned, str(device), planned),
        )


def moved(batch: Any, device: torch.device) -> Any:
    """A batch in its own types with its tensors on the device.

    Nothing waits for what the device has yet to compute. What has `.to(device)` is asked (a
    tokenizer's batch; a PackedSequence, whose sizes must stay on the CPU); other containers are
    looked into.
    """
    if isinstance(batch, torch.Tensor):
        return copied_in_order(batch, device)
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(moved(value, device) for value in batch))
    if type(batch) in (list, tuple):
        return type(batch)(moved(value, device) for value in batch)
    if type(batch) is dict:
        return {key: moved(value, device) for key, value in batch.items()}
    if isinstance(batch, Mapping):
        make: Callable[[dict[Any, Any]], Any] = type(batch)
        try:
            return make({key: moved(value, device) for key, value in batch.items()})
        except TypeError:
            return batch
    return batch
