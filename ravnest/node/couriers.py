"""How a frame gets from the thread that computes to the transport.

In a thread of its own, so that the next pass begins while the outputs of the last are still
computed, copied or packed. Or at once, where there is no next pass yet: to wake a thread takes
longer than to send a small frame.
"""

from __future__ import annotations

import abc
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ravnest.transport.interface import Message, Transport
from ravnest.wire.codec import encode
from ravnest.wire.frame import Codec, Frame

ReasonOf = Callable[[Exception], str]


@dataclass(frozen=True, slots=True)
class Parcel:
    """A frame and where it goes."""

    peer: int
    lane: str
    frame: Frame
    codec: Codec


class Courier(abc.ABC):
    """Takes frames to the transport, those of a lane in their order, and ends it."""

    @abc.abstractmethod
    def send(self, parcel: Parcel, *, at_once: bool) -> None:
        """Sends the frame, now or soon; its tensors must not be changed any more.

        Args:
            at_once: who calls has nothing to do meanwhile.

        Raises:
            RavnestError: as `Transport.send` and `encode` do, here or in a later call.
        """

    @abc.abstractmethod
    def check(self) -> None:
        """Raises what has stopped the courier, if anything has."""

    @abc.abstractmethod
    def close(self) -> None:
        """Sends what is left, then closes the transport; raises as `check`."""

    @abc.abstractmethod
    def abort(self, reason: str) -> None:
        """Drops what is left and aborts the transport; never raises."""


def courier_for(device: torch.device, transport: Transport, reason_of: ReasonOf) -> Courier:
    """Who takes the frames of a stage on that device.

    Args:
        reason_of: what the other nodes are told of a failure.
    """
    if device.type == "cuda":
        return OffloadingCourier(transport, reason_of, device)
    if device.type == "cpu":
        return OffloadingCourier(transport, reason_of)
    return PromptCourier(transport)


class PromptCourier(Courier):
    """Encodes and sends in the thread that calls: not every device likes to be used by two."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(self, parcel: Parcel, *, at_once: bool) -> None:
        _deliver(parcel, self._transport)

    def check(self) -> None:
        pass

    def close(self) -> None:
        self._transport.close()

    def abort(self, reason: str) -> None:
        self._transport.abort(reason)


class OffloadingCourier(Courier):
    """Encodes and sends in one thread, and copies there from CUDA, on a stream of its own.

    What is to go at once and comes from the processor's memory is sent by who calls, unless older
    frames wait. A frame's values are those of when it was handed over: from CUDA an event on the
    stream that computes goes with it. The thread sends in the order of the calls, so a lane that is
    full holds up the others just as it would if the calls themselves did the sending. How many
    frames wait is up to who sends: a schedule has only so many microbatches in flight.

    Args:
        device: a CUDA device, or None for frames of the processor's memory.
    """

    def __init__(
        self, transport: Transport, reason_of: ReasonOf, device: torch.device | None = None
    ) -> None:
        self._transport = transport
        self._reason_of = reason_of
        self._device = device
        self._queue: queue.SimpleQueue[tuple[Parcel, torch.cuda.Event | None] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._work, name="ravnest-courier", daemon=True)
        # Each is counted by one thread alone.
        self._num_given = self._num_delivered = 0
        self._is_abandoned = False
        self._failure: Exception | None = None

    def send(self, parcel: Parcel, *, at_once: bool) -> None:
        self.check()
        if at_once and self._device is None and self._num_given == self._num_delivered:
            _deliver(parcel, self._transport)
            return
        if self._thread.ident is None:
            self._thread.start()
        self._num_given += 1
        self._queue.put((parcel, None if self._device is None else _computed_on(self._device)))

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        self._end_thread()
        self._transport.close()
        self.check()

    def abort(self, reason: str) -> None:
        self._is_abandoned = True
        self._transport.abort(reason)  # which also ends a wait of the thread
        self._end_thread()

    def _end_thread(self) -> None:
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            with _stream_on(self._device) as stream:
                while (item := self._queue.get()) is not None and not self._is_abandoned:
                    parcel, computed = item
                    if stream is not None and computed is not None:
                        stream.wait_event(computed)
                    _deliver(parcel, self._transport)
                    self._num_delivered += 1
                    del item, parcel  # their memory is not to wait for the next frame
        except Exception as error:
            if not self._is_abandoned:
                self._failure = error
                # Who computes may be waiting for the answer to what was not sent.
                self._transport.abort(self._reason_of(error))


def _computed_on(device: torch.device) -> torch.cuda.Event:
    """Occurs when all is computed that has been launched so far."""
    computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
    computed.record(torch.cuda.current_stream(device))
    return computed


@contextmanager
def _stream_on(device: torch.device | None) -> Iterator[torch.cuda.Stream | None]:
    """A stream for what this thread does with the device; None without one."""
    if device is None:
        yield None
        return
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield stream


def _deliver(parcel: Parcel, transport: Transport) -> None:
    frame = parcel.frame
    header, payload = encode(frame, parcel.codec)
    purpose = f"{frame.kind.name.lower().replace('_', ' ')} {frame.microbatch or ''}".strip()
    transport.send(parcel.peer, parcel.lane, Message(header, payload), purpose=purpose)
