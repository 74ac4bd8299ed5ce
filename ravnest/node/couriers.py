"""How a frame gets from the thread that computes to the transport.

From a processor at once: encoding hardly copies. From an accelerator in a thread of its own, so
that the next pass is launched while the outputs of the last are still computed, copied or packed.
"""

from __future__ import annotations

import abc
import queue
import threading
from dataclasses import dataclass

import torch

from ravnest.transport.interface import Message, Transport
from ravnest.wire.codec import encode
from ravnest.wire.frame import Codec, Frame


@dataclass(frozen=True, slots=True)
class Parcel:
    """A frame and where it goes; `purpose` as in `Transport.send`."""

    peer: int
    lane: str
    frame: Frame
    codec: Codec
    purpose: str


class Courier(abc.ABC):
    """Takes frames to the transport, those of a lane in their order, and ends it."""

    @abc.abstractmethod
    def send(self, parcel: Parcel) -> None:
        """Sends the frame, now or soon; its tensors must not be changed any more.

        Raises:
            RavnestError: as `Transport.send` and `encode` do, here or in a later call.
        """

    @abc.abstractmethod
    def check(self) -> None:
        """Raises what has stopped the courier, if anything has."""

    @abc.abstractmethod
    def close(self) -> None:
        """Sends what is left, then closes the transport."""

    @abc.abstractmethod
    def abort(self, reason: str) -> None:
        """Drops what is left and aborts the transport; never raises."""


def courier_for(device: torch.device, transport: Transport) -> Courier:
    """Who takes the frames of a stage on that device."""
    if device.type == "cuda":
        return OffloadingCourier(device, transport)
    return PromptCourier(transport)


class PromptCourier(Courier):
    """Encodes and sends in the thread that calls."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(self, parcel: Parcel) -> None:
        _deliver(parcel, self._transport)

    def check(self) -> None:
        pass

    def close(self) -> None:
        self._transport.close()

    def abort(self, reason: str) -> None:
        self._transport.abort(reason)


class OffloadingCourier(Courier):
    """Copies, encodes and sends in one thread, on a stream of its own.

    A frame's values are those of when it was handed over: an event on the stream that computes
    goes with it. The thread sends in the order of the calls, so a lane that is full holds up the
    others just as it would if the calls themselves did the sending.
    """

    def __init__(self, device: torch.device, transport: Transport) -> None:
        self._device = device
        self._transport = transport
        self._queue: queue.SimpleQueue[tuple[Parcel, torch.cuda.Event] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ravnest-courier", daemon=True)
        self._is_abandoned = False
        self._failure: Exception | None = None

    def send(self, parcel: Parcel) -> None:
        self.check()
        if self._thread.ident is None:
            self._thread.start()
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record(torch.cuda.current_stream(self._device))
        self._queue.put((parcel, computed))

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._end_thread()
        self._transport.close()

    def abort(self, reason: str) -> None:
        self._is_abandoned = True
        self._transport.abort(reason)  # which also ends a wait of the thread
        self._end_thread()

    def _end_thread(self) -> None:
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        try:
            with torch.cuda.stream(stream):
                while (item := self._queue.get()) is not None and not self._is_abandoned:
                    parcel, computed = item
                    stream.wait_event(computed)
                    _deliver(parcel, self._transport)
                    del item, parcel  # the device's memory is not to wait for the next frame
        except Exception as error:
            if not self._is_abandoned:
                self._failure = error
                # Who computes may be waiting for the answer to what was not sent.
                self._transport.abort(f"{type(error).__name__}: {error}")


def _deliver(parcel: Parcel, transport: Transport) -> None:
    header, payload = encode(parcel.frame, parcel.codec)
    message = Message(header, payload)
    transport.send(parcel.peer, parcel.lane, message, purpose=parcel.purpose)
