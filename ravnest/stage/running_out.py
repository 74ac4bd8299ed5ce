"""Tells running out of memory from other errors, and says what is in use."""

from __future__ import annotations

import psutil
import torch

_WORDS = ("can't allocate memory", "not enough memory")  # of torch's allocator for the CPU


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an operator or Python could get no more memory."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def memory_in_use(device: torch.device) -> str:
    """What this process has on the device, and what is left there, for people."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
        now, (free, total) = torch.cuda.memory_allocated(device), torch.cuda.mem_get_info(device)
        return (
            f"tensors take {gigabytes(now)} on {device} and took {gigabytes(peak)} at most; "
            f"{gigabytes(free)} of its {gigabytes(total)} are free"
        )
    memory = psutil.virtual_memory()
    return (
        f"the process takes {gigabytes(psutil.Process().memory_info().rss)}; "
        f"{gigabytes(memory.available)} of the machine's {gigabytes(memory.total)} are free"
    )


def gigabytes(num_bytes: int) -> str:
    """As in the plan: decimal, with two digits."""
    return f"{num_bytes / 1e9:.2f} GB"
