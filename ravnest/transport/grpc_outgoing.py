"""One stream of a lane to a peer over gRPC: a queue, and gRPC's writer thread that empties it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ravnest.errors import ProtocolError
from ravnest.transport.bulk_connection import BulkConnection, BulkOffer
from ravnest.transport.bulk_dialer import BulkDialer
from ravnest.transport.envelope import farewell, parse_response, requests_of
from ravnest.transport.grpc_options import grpc
from ravnest.transport.interface import Message
from ravnest.transport.outbox import Outbox
from ravnest.transport.window import Allowance

_log = logging.getLogger(__name__)

# The type exists in the stubs only.
Call: TypeAlias = "grpc.CallFuture[bytes]"
OpenStream: TypeAlias = Callable[[Iterator[bytes]], Call]


@dataclass(frozen=True, slots=True)
class Last:
    """Ends a stream with a farewell."""

    failure: str | None


@dataclass(frozen=True, slots=True)
class Ends:
    """Who is told how a stream ended; at most one of these is called.

    Attributes:
        said_all: the peer has everything.
        broke: it has not, for this reason, and may get it over another stream.
        refused: it does not want it, for this reason.
        is_another: another process is there than before.
    """

    said_all: Callable[[], None]
    broke: Callable[[str], None]
    refused: Callable[[str], None]
    is_another: Callable[[], None]


class OutgoingStream:
    """One stream to one peer.

    gRPC's own thread takes the requests from `_requests`. Nobody reads: the one response comes at
    the end, and what the peer says before it comes on its control lane. Messages go over the bulk
    connection if there is one to be had when the first is written, else over gRPC.

    Args:
        hello: first request of the stream.
        preface: what follows at once.
        dialer: connects to where the peer takes messages.
    """

    def __init__(
        self,
        lane: str,
        hello: bytes,
        preface: Callable[[], Iterable[bytes]],
        dialer: BulkDialer,
        ends: Ends,
    ) -> None:
        self.allowance = Allowance()
        self.num_written = 0  # messages of the lane, those over streams before included
        self._lane = lane
        self._hello = hello
        self._preface = preface
        self._dialer = dialer
        self._ends = ends
        self._offer: BulkOffer | None = None
        self._bulk: BulkConnection | None = None
        self._queue: Outbox[Message | bytes | Last | None] = Outbox()
        self._is_cut = False
        self._is_broken = False
        self._has_said_all = False
        self._call: Call | None = None
        self._writer: threading.Thread | None = None

    def open(self, open_stream: OpenStream) -> None:
        """Opens it."""
        self._call = open_stream(self._requests())
        self._call.add_done_callback(self._ended)

    def put(self, item: Message | bytes | Last) -> None:
        """Queues what is to be written, or writes it at once if that is sure not to wait."""
        self._queue.put(item, self._write_now)

    def welcomed(self, num_received: int, limit: int, offer: BulkOffer | None) -> None:
        """The peer takes messages from that number on, up to a limit; before any is queued."""
        self._offer = offer
        self.num_written = num_received
        self.allowance.welcomed(num_received, limit)

    def cut(self) -> None:
        """Drops what is queued, ends the stream and joins its thread."""
        self._stop_writing()
        if self._call is not None:
            self._call.cancel()  # type: ignore[no-untyped-call]
        if self._writer is not None:
            self._writer.join()
        if self._bulk is not None:
            self._bulk.close()

    def _stop_writing(self) -> None:
        self._is_cut = True
        self._queue.put(None)  # from here on, nobody writes past the writer
        # The writer may wait for credits that will never come, or for room on the way.
        self.allowance.close()
        if self._bulk is not None:
            self._bulk.cut()

    def _requests(self) -> Iterator[bytes]:
        self._writer = threading.current_thread()
        yield self._hello
        yield from self._preface()
        while (item := self._queue.get()) is not None:
            is_allowed = not isinstance(item, Message) or self.allowance.take()
            if self._is_cut:
                return
            if isinstance(item, Message):
                if is_allowed:
                    yield from self._requests_of(item)
                if self._is_broken:
                    return
            elif isinstance(item, bytes):
                yield item
            else:
                self._has_said_all = True
                yield farewell(item.failure, self.num_written)
                return
            # Not to be kept until the next one comes.
            del item
            self._queue.done()

    def _requests_of(self, message: Message) -> Iterator[bytes]:
        """A message's requests; none when it goes over the bulk connection, which it then has."""
        bulk = self._bulk_connection()
        if bulk is None:
            yield from requests_of(message)
        else:
            try:
                bulk.send(self.num_written, message)
            except OSError as error:
                # The stream ends without a farewell, and its response says why, if anything does.
                _log.debug("bulk connection of lane %r: %s", self._lane, error)
                self._is_broken = True
        self.num_written += 1

    def _write_now(self, item: Message | bytes | Last | None) -> bool:
        """Writes what need not wait of a message in the caller's thread; whether that is all."""
        bulk = self._bulk
        if bulk is None or not isinstance(item, Message) or not self.allowance.take_now():
            return False
        try:
            is_written = bulk.send_now(self.num_written, item)
        except OSError:
            is_written = False  # the writer will see it, too
        if is_written:
            self.num_written += 1
        else:
            self.allowance.give_back()
        return is_written

    def _bulk_connection(self) -> BulkConnection | None:
        if self._bulk is None and self._offer is not None:
            self._bulk = self._dialer.connect(self._offer)
            self._offer = None
            if self._bulk is not None and self._is_cut:  # while it was made
                self._bulk.cut()
        return self._bulk

    def _ended(self, _: object) -> None:
        """Called by gRPC when the stream is over, for whatever reason."""
        call = self._call
        assert call is not None
        was_cut = self._is_cut
        self._stop_writing()
        if was_cut:
            return
        try:
            if call.code() is grpc.StatusCode.OK:
                self._take_response(call.result())
            else:
                self._stream_broke(call.code(), call.details())
        except ProtocolError as error:
            self._ends.refused(error.message)

    def _take_response(self, raw: bytes) -> None:
        response = parse_response(raw)
        if response.WhichOneof("body") == "refusal":
            if response.refusal.is_another:
                self._ends.is_another()
            else:
                raise ProtocolError(f"it refuses lane {self._lane!r}: {response.refusal.reason}")
        elif self._has_said_all:
            self._ends.said_all()
        else:
            self._ends.broke(f"it ended lane {self._lane!r} before we did")

    def _stream_broke(self, code: grpc.StatusCode, details: str) -> None:
        _log.debug("lane %r broke: %s %s", self._lane, code, details)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise ProtocolError("what listens there is not Ravnest")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise ProtocolError(f"it takes no more streams ({details})")
        self._ends.broke(f"the connection broke ({details})")
