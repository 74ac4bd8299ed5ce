"""The receiving end of one stream over gRPC: checks the Hello, then hands on what comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from ravnest.errors import ProtocolError
from ravnest.transport.envelope import (
    CONTROL_LANE,
    parse_request,
    received,
    refusal,
    welcome,
    whole_of,
)
from ravnest.transport.grpc_options import grpc
from ravnest.transport.lane_intake import LaneIntake
from ravnest.transport.pb import link_pb2
from ravnest.transport.reception import Reception


class IncomingLane:
    """One stream from a peer, or from a stranger until its Hello is accepted.

    All of it is read in the thread that gRPC gives to the stream; `greeter` only lives until the
    Hello, because gRPC's iterator cannot be waited for with a limit.

    Args:
        names: what the certificate of who opened it is for.
    """

    def __init__(
        self,
        reception: Reception,
        requests: Iterator[bytes],
        source: str,
        names: frozenset[str] = frozenset(),
    ) -> None:
        self._reception = reception
        self._requests = requests
        self._source = source
        self._names = names
        self._first: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._hello: link_pb2.Hello | None = None
        self._intake: LaneIntake | None = None
        self.greeter = threading.Thread(
            target=self._await_hello, name=f"ravnest-greeter-{source}", daemon=True
        )

    def serve(self) -> bytes:
        """Takes in everything until the stream ends; returns the response to it."""
        try:
            self._converse()
        except ProtocolError as error:
            self._reception.refused(self._source, error.message)
            if self._hello is not None:
                self._reception.peers.broke_protocol(self._hello.sender, error.message)
            return refusal(error.message)
        except (grpc.RpcError, StopIteration, ConnectionError):
            # A lost connection shows as any of these, depending on what is noticed first.
            if self._intake is not None and self._intake.problem is not None:
                self._reception.refused(self._source, self._intake.problem)
                return refusal(self._intake.problem)
            if self._hello is not None:
                cause = f"its stream on lane {self._hello.lane!r} broke"
                self._reception.peers.lost(self._hello.sender, cause)
        finally:
            if self._intake is not None:
                self._intake.end()
        return received()

    def _await_hello(self) -> None:
        try:
            self._first.put(next(self._requests))
        except (grpc.RpcError, StopIteration):
            self._first.put(None)

    def _first_request(self) -> bytes | None:
        self.greeter.start()
        limit_s = self._reception.hello_timeout_s
        try:
            return self._first.get(timeout=limit_s)
        except queue.Empty:
            raise ProtocolError(f"no Hello came within {limit_s:g} s") from None

    def _converse(self) -> None:
        if (first := self._first_request()) is None:
            return
        intake = self._admit(first)
        while True:
            raw = next(self._requests)
            if not intake.is_control and (whole := whole_of(raw)) is not None:
                intake.take_whole(*whole)
            elif self._is_last(parse_request(raw), intake):
                return

    def _is_last(self, request: link_pb2.ToReceiver, intake: LaneIntake) -> bool:
        """Acts on a request that is no whole message; true when it ends the stream."""
        match request.WhichOneof("body"):
            case "announcement" if not intake.is_control:
                intake.take_announced(request.announcement, self._requests.__next__)
            case "resume" if not intake.is_control:
                intake.resume(request.resume.position)
            case "welcome" | "credit" if intake.is_control:
                self._reception.answered(intake.sender, request)
            case "farewell":
                if intake.is_control:
                    self._part(intake.sender, request.farewell)
                return True
            case other:
                raise ProtocolError(f"an unexpected {other} came on lane {intake.lane!r}")
        return False

    def _admit(self, first: bytes) -> LaneIntake:
        request = parse_request(first)
        if request.WhichOneof("body") != "hello":
            raise ProtocolError(f"a stream began with {request.WhichOneof('body')}, not with hello")
        hello, reception = request.hello, self._reception
        reception.check(hello, self._names)
        sender, lane = hello.sender, hello.lane
        self._intake = LaneIntake(reception, sender, lane)
        self._hello = hello
        reception.peers.connected(sender)
        reception.arrived(sender)
        if lane != CONTROL_LANE:
            size = reception.settings.window
            reception.reply(sender, welcome(lane, size, self._intake.offer))
        return self._intake

    def _part(self, sender: int, farewell: link_pb2.Farewell) -> None:
        if farewell.HasField("failure"):
            self._reception.peers.failed(sender, farewell.failure)
        else:
            self._reception.peers.left(sender)
