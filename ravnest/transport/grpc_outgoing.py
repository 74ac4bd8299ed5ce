"""The sending end of one lane over gRPC: a queue, gRPC's writer thread and one reader thread."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from ravnest.errors import ProtocolError
from ravnest.transport.envelope import farewell, parse_response, requests_of
from ravnest.transport.grpc_options import grpc
from ravnest.transport.interface import Message, TransportSettings
from ravnest.transport.peers import PeerTable
from ravnest.transport.window import SendWindow

_log = logging.getLogger(__name__)

# The type exists in the stubs only.
Call: TypeAlias = "grpc.CallIterator[bytes]"
OpenStream: TypeAlias = Callable[[Iterator[bytes]], Call]


class OutgoingLane:
    """One stream to one peer.

    gRPC's own thread takes the requests from `_requests`; a thread of ours reads the responses.
    Messages wait in the queue until the peer has come and said Welcome.

    Args:
        hello: first request of the stream.
        open_stream: opens it; called once, by `open`.
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
    ) -> None:
        self.peer = peer
        self.lane = lane
        self.done = threading.Event()
        self._peers = peers
        self._window = SendWindow(peers, settings, peer, lane)
        self._hello = hello
        self._open_stream = open_stream
        self._queue: queue.SimpleQueue[Message | bytes] = queue.SimpleQueue()
        self._allowed = threading.Semaphore(0)
        self._is_cut = False
        self._has_said_all = False
        self._call: Call | None = None
        self._writer: threading.Thread | None = None
        self._reader = threading.Thread(
            target=self._read, name=f"ravnest-to-{peer}-{lane or 'control'}", daemon=True
        )

    def open(self) -> None:
        """Opens the stream, whether the peer is there or not."""
        self._call = self._open_stream(self._requests())
        self._reader.start()

    def send(self, message: Message, purpose: str) -> None:
        """Queues a message, waiting for a credit; raises as `Transport.send` does."""
        self._window.take(purpose)
        self._queue.put(message)

    def finish(self, failure: str | None = None) -> None:
        """Ends the stream after what is queued; `done` is set when the peer has it all."""
        self._queue.put(farewell(failure))

    def cut(self) -> None:
        """Drops what is queued, ends the stream and joins its threads."""
        self._is_cut = True
        if self._call is not None:
            self._call.cancel()  # type: ignore[no-untyped-call]
        self._queue.put(b"")
        self._allowed.release()
        for thread in (self._reader, self._writer):
            if thread is not None and thread.ident is not None:
                thread.join()

    def num_undelivered(self) -> int:
        """Messages, and perhaps the farewell, that gRPC has not taken."""
        return self._queue.qsize()

    def _requests(self) -> Iterator[bytes]:
        self._writer = threading.current_thread()
        yield self._hello
        while True:
            item = self._queue.get()
            if isinstance(item, Message):
                self._allowed.acquire()
            if self._is_cut:
                return
            if isinstance(item, bytes):
                self._has_said_all = True
                yield item
                return
            yield from requests_of(item)

    def _read(self) -> None:
        assert self._call is not None
        try:
            for raw in self._call:
                self._take_response(raw)
            if not self._has_said_all:
                self._peers.lost(self.peer, f"it ended lane {self.lane!r} before we did")
        except ProtocolError as error:
            self._call.cancel()  # type: ignore[no-untyped-call]
            self._peers.broke_protocol(self.peer, error.message)
        except grpc.RpcError as error:
            self._stream_broke(error)
        finally:
            self.done.set()
            # The writer may wait for credits that will never come.
            self._is_cut = True
            self._queue.put(b"")
            self._allowed.release()

    def _take_response(self, raw: bytes) -> None:
        response = parse_response(raw)
        match response.WhichOneof("body"):
            case "welcome":
                if response.welcome.window < 1:
                    raise ProtocolError("it welcomes this node with a window of 0")
                self._peers.connected(self.peer)
                self._allowed.release(response.welcome.window)
            case "credit":
                self._window.give(response.credit.num_messages)
                self._allowed.release(response.credit.num_messages)
            case _:
                raise ProtocolError(f"it refuses lane {self.lane!r}: {response.refusal.reason}")

    def _stream_broke(self, error: grpc.RpcError) -> None:
        if self._is_cut:
            return
        code, details = error.code(), error.details()
        _log.debug("lane %r to node %d broke: %s %s", self.lane, self.peer, code, details)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            self._peers.broke_protocol(self.peer, "what listens there is not Ravnest")
        elif code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._peers.broke_protocol(self.peer, f"it takes no more streams ({details})")
        else:
            self._peers.lost(self.peer, f"the connection broke ({details})")
