"""Flow control by messages: what a sender may send, and when a receiver has to say so."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ravnest.errors import ProtocolError
from ravnest.transport.backlog import Progress
from ravnest.transport.interface import TransportSettings
from ravnest.transport.peers import PeerTable, Waiting

# A sender keeps less than that of a lane because of messages which were received long ago; more
# while others follow them closely, since to say so takes as long as to move a MiB.
MAX_KEPT_BYTES = 16 << 20
MAX_KEPT_IN_STREAM_BYTES = 64 << 20


class SendWindow:
    """Counts the unconsumed messages of one lane and holds the sender back when it is full."""

    def __init__(self, peers: PeerTable, settings: TransportSettings, peer: int, lane: str) -> None:
        self._peers = peers
        self._size = settings.window
        self._peer = peer
        self._lane = lane
        self._unconsumed = 0

    def take(self, purpose: str) -> None:
        """Takes one credit, waiting for it; raises as `Transport.send` does."""

        def attempt() -> bool | None:
            self._peers.check(self._peer, purpose)
            if self._unconsumed >= self._size:
                return None
            self._unconsumed += 1
            return True

        with self._peers.lock:
            if attempt():  # without what only a wait needs
                return
        self._peers.wait(Waiting(self._peer, "take in", self._lane, purpose), attempt)

    def give(self, num_credits: int) -> None:
        """Gives credits back.

        Raises:
            ProtocolError: more come back than were taken.
        """
        with self._peers.lock:
            if not 0 < num_credits <= self._unconsumed:
                raise ProtocolError(
                    f"node {self._peer} gives {num_credits} credits on lane {self._lane!r}; "
                    f"{self._unconsumed} messages are unconsumed"
                )
            was_full = self._unconsumed >= self._size
            self._unconsumed -= num_credits
            if was_full:
                self._peers.condition.notify_all()


class Allowance:
    """How many messages of a lane its writer may have written, as far as the peer has said.

    Nothing until the peer has welcomed the stream.
    """

    def __init__(self) -> None:
        # Entered itself, for every message: a condition passes that on with another call.
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._limit = 0
        self._num_written = 0
        self._is_welcome = False
        self._is_ending = False
        self._is_over = False

    def welcomed(self, num_written: int, limit: int) -> None:
        """The peer has so many, and takes more up to a limit, both since the lane began."""
        with self._lock:
            self._is_welcome = True
            self._num_written, self._limit = num_written, limit
            self._condition.notify_all()

    def extend(self, limit: int) -> None:
        """The peer takes more."""
        with self._lock:
            self._limit = max(self._limit, limit)
            self._condition.notify_all()

    def take(self) -> bool:
        """Waits until one more may be written; false, from then on, when none may any more."""
        with self._lock:
            self._condition.wait_for(self._is_settled)
            if self._is_over or self._num_written >= self._limit:
                self._is_over = True
                return False
            self._num_written += 1
            return True

    def take_now(self) -> bool:
        """As `take`, without waiting; false when it would, or none may be written any more."""
        with self._lock:
            if self._is_over or self._num_written >= self._limit:
                return False
            self._num_written += 1
            return True

    def give_back(self) -> None:
        """What `take_now` took was not written."""
        with self._lock:
            self._num_written -= 1

    def end(self) -> None:
        """From now on only what the peer takes without consuming anything more."""
        with self._lock:
            self._is_ending = True
            self._condition.notify_all()

    def close(self) -> None:
        """From now on nothing."""
        with self._lock:
            self._is_over = True
            self._condition.notify_all()

    def _is_settled(self) -> bool:
        has_room = self._num_written < self._limit
        return self._is_over or has_room or (self._is_ending and self._is_welcome)


class ReceiveWindow:
    """Counts the messages of one lane that came and that were consumed, and says so now and then.

    Credits are held back while the sender is sure to have some: as long as less than half a window
    has arrived since the last ones. A sender out of credits has a whole window on its way; once
    that has arrived every consumed message is credited at once. So nobody waits for what is held
    back. What says how many were consumed says how many came as well, and is said early when the
    sender keeps many bytes for a link that may break. Where a message goes to the sender anyway it
    takes along what would be said soon, so that between nodes that send to each other little is
    left to be said by itself.

    Args:
        tell: says both to the sender; called from the thread that consumes or the one that
            receives.
    """

    def __init__(self, window: int, tell: Callable[[Progress], None]) -> None:
        self._threshold = max(1, window // 2)
        self._least_taken_along = max(1, window // 4)
        self._tell = tell
        self._lock = threading.Lock()
        self._num_received = self._num_consumed = 0
        self._num_credited = 0
        self._unacknowledged_bytes = 0

    @property
    def progress(self) -> Progress:
        """How far the lane is."""
        with self._lock:
            return Progress(self._num_received, self._num_consumed)

    @property
    def num_received(self) -> int:
        """Messages that have come."""
        return self._num_received

    def arrived(self, num_bytes: int, *, is_followed: bool = False) -> None:
        """A message came, with a payload of that size; to call before anybody can consume it.

        Args:
            is_followed: some of the next message is here already.
        """
        with self._lock:
            self._num_received += 1
            self._unacknowledged_bytes += num_bytes
            news = self._news(MAX_KEPT_IN_STREAM_BYTES if is_followed else MAX_KEPT_BYTES)
        if news is not None:
            self._tell(news)

    def consumed(self) -> None:
        """A message that came was consumed."""
        with self._lock:
            self._num_consumed += 1
            news = self._news(MAX_KEPT_IN_STREAM_BYTES)
        if news is not None:
            self._tell(news)

    def taken_along(self) -> Progress | None:
        """How far the lane is, if a message to the sender should say so; then it counts as said."""
        if self._num_consumed - self._num_credited < self._least_taken_along:
            return None  # looked at for every message: a moment later will do as well
        with self._lock:
            return self._said()

    def _news(self, max_kept_bytes: int) -> Progress | None:
        """How far the lane is, if the sender should hear of it."""
        has_credits = self._num_consumed > self._num_credited
        is_short = self._num_received - self._num_credited >= self._threshold
        if not (has_credits and is_short) and self._unacknowledged_bytes < max_kept_bytes:
            return None
        return self._said()

    def _said(self) -> Progress:
        self._num_credited = self._num_consumed
        self._unacknowledged_bytes = 0
        return Progress(self._num_received, self._num_consumed)
