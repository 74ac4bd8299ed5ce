"""How much memory a node can offer: what is free, less what the system needs to go on living."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ravnest.errors import ConfigError
from ravnest.planning.checking.available import free_memory

# Programs come and go while a training runs; a display or another process shares an accelerator.
_KEPT_SHARE = 0.05
_KEPT_RAM_BYTES = 500_000_000
_KEPT_VRAM_BYTES = 250_000_000


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory of a device at this moment.

    Attributes:
        free_bytes: that can be had; this process counts as using, not as free.
        source: which limit says so, in words.
        kept_bytes: of these left for the system.
    """

    device: str
    free_bytes: int
    source: str
    kept_bytes: int

    @property
    def offered_bytes(self) -> int:
        """What a plan may use."""
        return self.free_bytes - self.kept_bytes


def measure_memory(device: torch.device) -> MemoryReading:
    """Reads what is free on a device: RAM on the CPU, within the container's limit, else VRAM.

    Of it 5 %, but at least 0.5 GB of RAM or 0.25 GB of VRAM (and never more than half), is left.

    Raises:
        ConfigError: the device is not there, or does not say what is free.
    """
    try:
        free = free_memory(device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError(
            f"device {str(device)!r} cannot be used: {reason}",
            hint="pass the device that training will use, such as --device cpu",
        ) from error
    if free is None:
        raise ConfigError(
            f"device {str(device)!r} does not say how much memory is free",
            hint="say it yourself, with --ram",
        )
    least = _KEPT_RAM_BYTES if device.type == "cpu" else _KEPT_VRAM_BYTES
    kept = min(free.num_bytes // 2, max(least, int(free.num_bytes * _KEPT_SHARE)))
    return MemoryReading(str(device), free.num_bytes, free.source, kept)
