"""Copies between a processor's memory and an accelerator's, beside what the accelerator computes.

What the host copies from or to is pinned, because only such copies run by themselves (CUDA C
Programming Guide, "Asynchronous Concurrent Execution"), and on a stream of their own, because on
that of the computing they would queue behind everything launched before.
"""

from __future__ import annotations

import torch


class DeviceCopier:
    """Brings what has arrived to the device of a stage.

    On CUDA the thread that calls only copies into pinned memory; what is launched afterwards on its
    current stream waits for the copy, what was launched before does not delay it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device; itself when it is there."""
        if tensor.is_cpu and self._device.type == "cpu":
            return tensor
        if self._stream is None or not tensor.is_cpu:
            return tensor.to(self._device)
        computing = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            copy = tensor.pin_memory().to(self._device, non_blocking=True)
        computing.wait_stream(self._stream)
        copy.record_stream(computing)  # its memory is not to be used again before
        return copy


def copied_in_order(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device, once what was launched before is computed; itself when it is there.

    The thread that calls waits for none of that: from memory that is not pinned it would.
    """
    is_plain = tensor.device.type == "cpu" and tensor.layout is torch.strided
    if device.type != "cuda" or not is_plain:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class HostNumber:
    """One number of the device, on its way to the host from when this is made.

    Args:
        number: of one element.
    """

    def __init__(self, number: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = number.detach()
        if number.device.type == "cuda":
            self._host = self._host.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(number.device))

    def value(self) -> float:
        """The number, waiting for what it is computed by, but for nothing launched later."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._host)
