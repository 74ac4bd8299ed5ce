"""The sending end of one lane over gRPC: a queue, and gRPC's writer thread that empties it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ravnest.errors import ProtocolError
from ravnest.transport.bulk_connection import BulkConnection, BulkOffer
from ravnest.transport.bulk_dialer import BulkDialer
from ravnest.transport.envelope import (
    farewell,
    parse_response,
    requests_of,
    resume,
)
from ravnest.transport.grpc_options import grpc
from ravnest.transport.interface import Message, TransportSettings
from ravnest.transport.peers import PeerTable
from ravnest.transport.window import Allowance, SendWindow

_log = logging.getLogger(__name__)

# The type exists in the stubs only.
Call: TypeAlias = "grpc.CallFuture[bytes]"
OpenStream: TypeAlias = Callable[[Iterator[bytes]], Call]


@dataclass(frozen=True, slots=True)
class _Last:
    """The request that ends a stream; an empty one only wakes the writer."""

    request: bytes


class OutgoingLane:
    """One stream to one peer.

    gRPC's own thread takes the requests from `_requests`. Nobody reads: the one response comes at
    the end, and what the peer says before it comes on its control lane (`welcomed`, `credited`).
    Messages wait in the queue until the peer has come, all but the first until it says Welcome.

    Args:
        hello: first request of the stream.
        open_stream: opens it; called once, by `open`.
        dialer: connects to where the peer takes messages.
    """

    def __init__(
        self,
        peers: PeerTable,
        settings: TransportSettings,
        peer: int,
        lane: str,
        *,
        hello: bytes,
        open_stream: OpenStream,
        dialer: BulkDialer,
    ) -> None:
        self.peer = peer
        self.lane = lane
        self.done = threading.Event()
        self._peers = peers
        self._window = SendWindow(peers, settings, peer, lane)
        self._hello = hello
        self._open_stream = open_stream
        self._dialer = dialer
        self._offer: BulkOffer | None = None
        self._bulk: BulkConnection | None = None
        self._position = 0  # of the next message
        self._is_resumed = True  # gRPC's last message was the one before
        self._queue: queue.SimpleQueue[Message | bytes | _Last] = queue.SimpleQueue()
        self._allowance = Allowance()
        self._is_cut = False
        self._is_broken = False
        self._has_said_all = False
        self._call: Call | None = None
        self._writer: threading.Thread | None = None

    def open(self) -> None:
        """Opens the stream, whether the peer is there or not."""
        self._call = self._open_stream(self._requests())
        self._call.add_done_callback(self._ended)

    def send(self, message: Message, purpose: str) -> None:
        """Queues a message, waiting for a credit; raises as `Transport.send` does."""
        self._window.take(purpose)
        self._queue.put(message)

    def tell(self, request: bytes) -> None:
        """Queues a request that needs no credit."""
        self._queue.put(request)

    def welcomed(self, window: int, offer: BulkOffer | None) -> None:
        """The peer has accepted the lane; ProtocolError when it did before, or takes nothing."""
        what = f"node {self.peer} welcomes lane {self.lane!r} with a window of {window}"
        if window < 1:
            raise ProtocolError(what)
        # Before the allowance: the writer looks for an offer once it may write more.
        first_offer, self._offer = self._offer, offer
        if not self._allowance.welcomed(window):
            self._offer = first_offer
            raise ProtocolError(f"{what} a second time")

    def credited(self, num_messages: int) -> None:
        """The peer has consumed messages; ProtocolError when it cannot have."""
        self._window.give(num_messages)
        self._allowance.add(num_messages)

    def finish(self, failure: str | None = None) -> None:
        """Ends the stream after what is queued; `done` is set when the peer has it all."""
        self._queue.put(_Last(farewell(failure)))

    def drain(self) -> None:
        """As `finish`, but drops messages that would first need the peer to consume others."""
        self._allowance.end()
        self.finish()

    def cut(self) -> None:
        """Drops what is queued, ends the stream and joins its thread."""
        self._stop_writing()
        if self._call is not None:
            self._call.cancel()  # type: ignore[no-untyped-call]
        if self._writer is not None:
            self._writer.join()
        if self._bulk is not None:
            self._bulk.close()

    @property
    def is_open(self) -> bool:
        """Whether the peer was there and its stream was opened."""
        return self._call is not None

    def num_undelivered(self) -> int:
        """Messages, and perhaps the farewell, that gRPC has not taken."""
        return self._queue.qsize()

    def _stop_writing(self) -> None:
        self._is_cut = True
        self._queue.put(_Last(b""))
        # The writer may wait for credits that will never come, or for room on the way.
        self._allowance.close()
        if self._bulk is not None:
            self._bulk.cut()

    def _requests(self) -> Iterator[bytes]:
        self._writer = threading.current_thread()
        yield self._hello
        while True:
            item = self._queue.get()
            is_allowed = not isinstance(item, Message) or self._allowance.take()
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
                yield from self._resume()
                self._has_said_all = True
                yield item.request
                return
            # Not to be kept until the next one comes.
            del item

    def _requests_of(self, message: Message) -> Iterator[bytes]:
        """A message's requests; none when it goes over the bulk connection, which it then has."""
        bulk = self._bulk_connection()
        if bulk is None:
            yield from self._resume()
            yield from requests_of(message)
        else:
            self._is_resumed = False
            try:
                bulk.send(self._position, message)
            except OSError as error:
                # The stream ends without a farewell, and its response says why, if anything does.
                _log.debug("bulk connection of lane %r to %d: %s", self.lane, self.peer, error)
                self._is_broken = True
        self._position += 1

    def _resume(self) -> Iterator[bytes]:
        """Tells where what follows belongs, unless that is known."""
        if not self._is_resumed:
            self._is_resumed = True
            yield resume(self._position)

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
        try:
            if call.code() is grpc.StatusCode.OK:
                self._take_response(call.result())
            elif not self._is_cut:
                self._stream_broke(call.code(), call.details())
        except ProtocolError as error:
            self._peers.broke_protocol(self.peer, error.message)
        finally:
            self.done.set()
            self._stop_writing()

    def _take_response(self, raw: bytes) -> None:
        response = parse_response(raw)
        if response.WhichOneof("body") == "refusal":
            raise ProtocolError(f"it refuses lane {self.lane!r}: {response.refusal.reason}")
        if not self._has_said_all:
            self._peers.lost(self.peer, f"it ended lane {self.lane!r} before we did")

    def _stream_broke(self, code: grpc.StatusCode, details: str) -> None:
        _log.debug("lane %r to node %d broke: %s %s", self.lane, self.peer, code, details)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            self._peers.broke_protocol(self.peer, "what listens there is not Ravnest")
        elif code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._peers.broke_protocol(self.peer, f"it takes no more streams ({details})")
        else:
            self._peers.lost(self.peer, f"the connection broke ({details})")
