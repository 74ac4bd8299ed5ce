"""The receiving end of one lane: how far it is, and which stream brings the next message."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ravnest.errors import ProtocolError
from ravnest.transport.backlog import Progress
from ravnest.transport.bulk_connection import BulkOffer
from ravnest.transport.envelope import credit, refusal_of, welcome
from ravnest.transport.inbox import Inbox
from ravnest.transport.interface import Message, TransportSettings
from ravnest.transport.window import ReceiveWindow


class LaneIntake:
    """One lane of a peer, over as many streams as links break.

    One stream at a time brings messages: the one on the newest connection. Each message is counted
    when it comes, whole, so the next stream begins with the one after it.

    Args:
        tell: sends a request to the peer, on the control lane to it.

    Raises:
        ProtocolError: the peer may not open that lane.
    """

    def __init__(
        self,
        settings: TransportSettings,
        inbox: Inbox,
        sender: int,
        lane: str,
        tell: Callable[[bytes], None],
    ) -> None:
        self.sender = sender
        self.lane = lane
        self._size = settings.window
        self._inbox = inbox
        self._tell = tell
        self._window = ReceiveWindow(self._size, self._tell_progress)
        self._lock = threading.RLock()
        self._change = threading.Condition(self._lock)
        self._connection = 0
        self._cut: Callable[[], None] | None = None  # of the stream that brings messages
        self._offer: BulkOffer | None = None
        self._is_over = False
        inbox.open_lane(sender, lane, self._window.consumed, self._size)

    def begin(self, connection: int, cut: Callable[[], None]) -> bool:
        """A stream of a newer connection brings the messages; false when nothing more is to come.

        Args:
            cut: ends that stream; called when a newer one begins.

        Raises:
            ProtocolError: the lane was opened on this connection before, or on a newer one.
        """
        with self._lock:
            if connection <= self._connection:
                raise ProtocolError(
                    f"node {self.sender} opens lane {self.lane!r} again on its connection "
                    f"{connection}; expected a newer one than {self._connection}"
                )
            self._connection, before = connection, self._cut
            if not self._is_over:
                self._cut = cut
            self._change.notify_all()
            is_over = self._is_over
        if before is not None:
            before()
        return not is_over

    def welcome(self, connection: int, offer: BulkOffer | None) -> None:
        """Has the sender go on, with what did not come before this stream."""
        with self._lock:
            if connection == self._connection:
                self._offer = offer
                self._tell(self._welcome())

    def refuse(self, reason: str) -> None:
        """Tells the sender that what it sent is not accepted."""
        self._tell(refusal_of(self.lane, reason))

    def standing(self) -> bytes | None:
        """What a sender has to know that may have missed everything; None: nothing."""
        with self._lock:
            return None if self._cut is None else self._welcome()

    def note(self) -> bytes | None:
        """What the next message to the sender should take along; None: nothing."""
        progress = self._window.taken_along()
        return None if progress is None else credit(self.lane, progress)

    @property
    def progress(self) -> Progress:
        """How far the lane is."""
        with self._lock:
            return self._window.progress

    def deliver(
        self, connection: int, number: int, message: Message, *, is_followed: bool = False
    ) -> None:
        """Takes a message that came whole on that connection.

        Args:
            is_followed: as in `ReceiveWindow.arrived`.

        Raises:
            ConnectionError: a newer stream has taken over, or none brings messages any more.
            ProtocolError: it is not the next message, or the sender has no credit for it.
        """
        with self._lock:
            self._check(connection)
            if number != (expected := self._window.num_received):
                raise ProtocolError(
                    f"message {number} came on lane {self.lane!r}, expected {expected}"
                )
            self._window.arrived(message.num_bytes, is_followed=is_followed)
            self._inbox.deliver(self.sender, self.lane, message)
            self._change.notify_all()

    def finish(self, connection: int, num_messages: int) -> None:
        """Waits until all messages of the lane have come: then it is over; raises as `deliver`."""
        with self._lock:
            while (num_received := self._window.num_received) < num_messages:
                self._check(connection)
                self._change.wait()
            if num_received > num_messages:
                raise ProtocolError(
                    f"lane {self.lane!r} is said to have {num_messages} messages; "
                    f"{num_received} came"
                )
            self._check(connection)
            self._is_over = True
            self._cut = None

    def leave(self, connection: int) -> None:
        """The stream of that connection brings nothing more."""
        with self._lock:
            if connection == self._connection:
                self._cut = None
                self._change.notify_all()

    def _check(self, connection: int) -> None:
        if connection != self._connection or self._cut is None:
            raise ConnectionError(f"connection {connection} of lane {self.lane!r} is over")

    def _welcome(self) -> bytes:
        return welcome(self.lane, self._size, self._connection, self._window.progress, self._offer)

    def _tell_progress(self, progress: Progress) -> None:
        self._tell(credit(self.lane, progress))
