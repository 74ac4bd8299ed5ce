"""Flow control by messages: what a sender may send, and when a receiver has to say so."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ravnest.errors import ProtocolError
from ravnest.transport.interface import TransportSettings
from ravnest.transport.peers import PeerTable, Waiting


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

        self._peers.wait(Waiting(self._peer, "take in", self._lane, purpose), attempt)

    def give(self, num_credits: int) -> None:
        """Gives credits back.

        Raises:
            ProtocolError: more come back than were taken.
        """
        with self._peers.condition:
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
    """Messages that the writer of one lane may still write, as far as the peer has said.

    One from the start: every window has room for it, so it follows the Hello without waiting.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._left = 1
        self._is_welcome = False
        self._is_ending = False
        self._is_over = False

    def welcomed(self, window: int) -> bool:
        """The peer takes that many; false when it has said so before."""
        with self._condition:
            if self._is_welcome:
                return False
            self._is_welcome = True
            self._left += window - 1
            self._condition.notify_all()
            return True

    def add(self, num_messages: int) -> None:
        """The peer takes more."""
        with self._condition:
            self._left += num_messages
            self._condition.notify_all()

    def take(self) -> bool:
        """Waits until one more may be written; false, from then on, when none may any more."""
        with self._condition:
            self._condition.wait_for(self._is_settled)
            if self._is_over or not self._left:
                self._is_over = True
                return False
            self._left -= 1
            return True

    def end(self) -> None:
        """From now on only what the peer takes without consuming anything more."""
        with self._condition:
            self._is_ending = True
            self._condition.notify_all()

    def close(self) -> None:
        """From now on nothing."""
        with self._condition:
            self._is_over = True
            self._condition.notify_all()

    def _is_settled(self) -> bool:
        return self._is_over or self._left > 0 or (self._is_ending and self._is_welcome)


class ReceiveWindow:
    """Gathers the credits of one lane, so that a stream of messages needs few of them.

    Credits are held back while the sender is sure to have some: as long as less than half a window
    has arrived since the last ones. A sender out of credits has a whole window on its way; once
    that has arrived every consumed message is credited at once. So nobody waits for what is held
    back.

    Args:
        give: sends that many credits to the sender; called from the thread that consumes or the one
            that receives.
    """

    def __init__(self, window: int, give: Callable[[int], None]) -> None:
        self._threshold = max(1, window // 2)
        self._give = give
        self._lock = threading.Lock()
        self._uncredited = 0
        self._consumed = 0

    def arrived(self) -> None:
        """A message came; to call before anybody can consume it."""
        with self._lock:
            self._uncredited += 1
            num_credits = self._take()
        if num_credits:
            self._give(num_credits)

    def consumed(self) -> None:
        """A message that came was consumed."""
        with self._lock:
            self._consumed += 1
            num_credits = self._take()
        if num_credits:
            self._give(num_credits)

    def _take(self) -> int:
        if self._uncredited < self._threshold:
            return 0
        num_credits, self._consumed = self._consumed, 0
        self._uncredited -= num_credits
        return num_credits
