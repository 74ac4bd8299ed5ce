"""The sending end of one lane: what was sent, and the stream that carries it now."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from ravnest.errors import ProtocolError
from ravnest.transport.backlog import Backlog, Progress
from ravnest.transport.envelope import CONTROL_LANE, offer_of, progress_of
from ravnest.transport.grpc_outgoing import Last, OpenStream, OutgoingStream
from ravnest.transport.interface import Message, TransportSettings
from ravnest.transport.pb import link_pb2
from ravnest.transport.peers import PeerTable
from ravnest.transport.window import SendWindow

StreamMaker: TypeAlias = "Callable[[OutgoingLane, int], OutgoingStream]"


class OutgoingLane:
    """One lane to one peer, over as many streams as links break.

    Messages wait in the backlog until a stream is welcomed. Then all that the peer does not have go
    to the stream, and those sent from then on; they stay in the backlog until the peer has said
    that it has them.

    The control lane has no messages; what is told on it while no stream is there is dropped,
    because a new stream begins with how things stand.

    Args:
        make_stream: for a connection of that number.

    Attributes:
        done: set when the peer has everything, the farewell included, or will never have it.
    """

    def __init__(
        self,
        peers: PeerTable,
        settings: TransportSettings,
        peer: int,
        lane: str,
        make_stream: StreamMaker,
    ) -> None:
        self.peer = peer
        self.lane = lane
        self.done = threading.Event()
        self._window = SendWindow(peers, settings, peer, lane)
        self._make_stream = make_stream
        self._backlog = Backlog(lane)
        self._lock = threading.Lock()
        self._connection = 0  # the newest that it was opened on
        self._stream: OutgoingStream | None = None
        self._peer_window: int | None = None  # of that stream, once it is welcomed
        self._num_consumed = 0
        self._num_written = 0  # to the streams before
        self._last: Last | None = None
        self._is_draining = False
        self._is_cut = False

    @property
    def is_control(self) -> bool:
        """Whether it is the lane without messages."""
        return self.lane == CONTROL_LANE

    @property
    def is_open(self) -> bool:
        """Whether the peer is there and there is a stream."""
        return self._stream is not None

    @property
    def num_undelivered(self) -> int:
        """Messages that the peer has not said to have."""
        with self._lock:
            return self._backlog.num_kept

    @property
    def num_acknowledged(self) -> int:
        """Messages that the peer has said to have."""
        with self._lock:
            return self._backlog.num_sent - self._backlog.num_kept

    def open(self, connection: int, open_stream: OpenStream) -> None:
        """Opens a stream on a new connection; nothing when everything was said."""
        with self._lock:
            if self._is_cut or self.done.is_set():
                return
            stream = self._make_stream(self, connection)
            self._connection, self._stream, self._peer_window = connection, stream, None
            if self._is_draining:
                stream.allowance.end()
            if self.is_control and self._last is not None:
                stream.put(self._last)
        stream.open(open_stream)

    def send(self, message: Message, purpose: str) -> None:
        """Queues a message, waiting for a credit; raises as `Transport.send` does."""
        self._window.take(purpose)
        with self._lock:
            self._backlog.append(message)
            if self._stream is not None and self._peer_window is not None:
                self._stream.put(message)

    def tell(self, request: bytes) -> None:
        """Queues a request of the control lane."""
        with self._lock:
            if self._stream is not None:
                self._stream.put(request)

    def welcomed(self, body: link_pb2.Welcome) -> tuple[int, int] | None:
        """The peer goes on with the lane; messages and bytes sent again, None when that is no news.

        Raises:
            ProtocolError: the peer takes nothing, or has what was not sent, or says another thing
                than before.
        """
        progress = progress_of(body)
        with self._lock:
            if body.connection > self._connection:
                raise ProtocolError(
                    f"node {self.peer} answers connection {body.connection} of lane "
                    f"{self.lane!r}, which this node has not opened"
                )
            stream = self._stream
            if stream is None or body.connection != self._connection:
                return None  # of a stream that is no more
            what = f"node {self.peer} welcomes lane {self.lane!r} with a window of {body.window}"
            if body.window < 1:
                raise ProtocolError(what)
            if self._peer_window is not None:
                if body.window != self._peer_window:
                    raise ProtocolError(f"{what} a second time, and with {self._peer_window} first")
                self._credit(progress)
                return None
            rest = self._backlog.rest(progress.num_received)
            self._peer_window = body.window
            self._credit(progress)
            limit = self._num_consumed + body.window
            stream.welcomed(progress.num_received, limit, offer_of(body))
            for message in rest:
                stream.put(message)
            if self._last is not None and not self.is_control:
                stream.put(self._last)
            again = rest[: max(0, self._num_written - progress.num_received)]
        return len(again), sum(message.num_bytes for message in again)

    def credited(self, body: link_pb2.Credit) -> None:
        """The peer has received or consumed messages; ProtocolError when it cannot have."""
        progress = progress_of(body)
        with self._lock:
            self._backlog.acknowledge(progress.num_received)
            self._credit(progress)

    def finish(self, failure: str | None = None) -> None:
        """Ends the lane after what is queued; `done` is set when the peer has it all."""
        with self._lock:
            self._last = Last(failure)
            if self._stream is not None and (self.is_control or self._peer_window is not None):
                self._stream.put(self._last)

    def drain(self) -> None:
        """As `finish`, but drops messages that would first need the peer to consume others."""
        with self._lock:
            self._is_draining = True
            if self._stream is not None:
                self._stream.allowance.end()
        self.finish()

    def suspend(self) -> None:
        """Cuts the stream and joins its thread; the lane goes on with the next one."""
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.cut()
            self._num_written = max(self._num_written, stream.num_written)

    def cut(self) -> None:
        """Drops what is queued, ends the stream and joins its thread."""
        with self._lock:
            self._is_cut = True
        self.suspend()
        self.done.set()

    def _credit(self, progress: Progress) -> None:
        """Under the lock."""
        if (num_credits := progress.num_consumed - self._num_consumed) <= 0:
            return  # old news
        self._window.give(num_credits)
        self._num_consumed = progress.num_consumed
        if self._stream is not None and self._peer_window is not None:
            self._stream.allowance.extend(self._num_consumed + self._peer_window)
