"""The receiving end of one stream over gRPC: checks the Hello, then hands on what comes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from ravnest.errors import ProtocolError
from ravnest.transport.envelope import parse_request, received, refusal, whole_of
from ravnest.transport.grpc_options import grpc
from ravnest.transport.pb import link_pb2
from ravnest.transport.reception import Reception
from ravnest.transport.stream_intake import StreamIntake


class IncomingStream:
    """One stream from a peer, or from a stranger until its Hello is accepted.

    All of it is read in the thread that gRPC gives to the stream; `greeter` only lives until the
    Hello, because gRPC's iterator cannot be waited for with a limit.

    Args:
        cancel: ends the stream; any thread may.
        names: what the certificate of who opened it is for.
    """

    def __init__(
        self,
        reception: Reception,
        requests: Iterator[bytes],
        source: str,
        cancel: Callable[[], None],
        names: frozenset[str] = frozenset(),
    ) -> None:
        self._reception = reception
        self._requests = requests
        self._source = source
        self._cancel = cancel
        self._names = names
        self._first: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._hello: link_pb2.Hello | None = None
        self._intake: StreamIntake | None = None
        self._is_another = False
        self._is_terminated = False
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
            return refusal(error.message, is_another=self._is_another)
        except (grpc.RpcError, StopIteration, ConnectionError):
            # A lost connection shows as any of these, depending on what is noticed first.
            if self._intake is not None and self._intake.problem is not None:
                self._reception.refused(self._source, self._intake.problem)
                return refusal(self._intake.problem)
            if self._hello is not None:
                cause = f"its stream on lane {self._hello.lane!r} broke"
                link = self._reception.links[self._hello.sender]
                link.incoming_broke(self._hello.connection, cause)
        finally:
            if self._intake is not None:
                self._intake.end()
        return received()

    def terminated(self) -> None:
        """The stream is over, for whatever reason; what waits for more is to end."""
        self._is_terminated = True
        if self._intake is not None:
            self._intake.leave()

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
        if (intake := self._admit(first)) is None:
            return
        while True:
            raw = next(self._requests)
            if not intake.is_control and (whole := whole_of(raw)) is not None:
                intake.take_whole(*whole)
            elif self._is_last(parse_request(raw), intake):
                return

    def _is_last(self, request: link_pb2.ToReceiver, intake: StreamIntake) -> bool:
        """Acts on a request that is no whole message; true when it ends the stream."""
        match request.WhichOneof("body"):
            case "announcement" if not intake.is_control:
                intake.take_announced(request.announcement, self._requests.__next__)
            case "welcome" | "credit" | "refusal" if intake.is_control:
                self._reception.answered(intake.sender, request)
            case "farewell":
                if intake.is_control:
                    self._part(intake.sender, request.farewell)
                intake.finish(request.farewell.num_messages)
                return True
            case other:
                raise ProtocolError(f"an unexpected {other} came on lane {intake.lane!r}")
        return False

    def _admit(self, first: bytes) -> StreamIntake | None:
        """Takes in a stream by its Hello; None when its lane has ended as it should before."""
        request = parse_request(first)
        if request.WhichOneof("body") != "hello":
            raise ProtocolError(f"a stream began with {request.WhichOneof('body')}, not with hello")
        hello, reception = request.hello, self._reception
        if reception.has_parted(hello):
            return None
        self._is_another = reception.is_another(hello)
        reception.check(hello, self._names)
        lane = reception.intakes.lane(hello.sender, hello.lane)
        if not lane.begin(hello.connection, self._cancel):
            return None
        self._intake = StreamIntake(reception, lane, hello.connection, self._cancel)
        self._hello = hello
        if self._is_terminated:  # before there was an intake
            self._intake.leave()
        reception.links[hello.sender].greeted(hello.connection, is_control=self._intake.is_control)
        reception.arrived(hello.sender)
        lane.welcome(hello.connection, self._intake.offer)
        return self._intake

    def _part(self, sender: int, farewell: link_pb2.Farewell) -> None:
        if farewell.HasField("failure"):
            self._reception.peers.failed(sender, farewell.failure)
        else:
            self._reception.peers.left(sender)
        self._reception.arrived(sender)
