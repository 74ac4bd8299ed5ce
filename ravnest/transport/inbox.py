"""The receiving half of every transport: one bounded queue per peer and lane.

Knows order, windows and credits; knows nothing of how bytes travel.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ravnest.errors import ProtocolError
from ravnest.transport.interface import Message, Opener
from ravnest.transport.limits import MAX_LANES
from ravnest.transport.peers import PeerTable, Waiting

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Lane:
    give_credit: Callable[[], None]
    window: int
    messages: deque[Message] = field(default_factory=deque)


class Inbox:
    """Messages that have arrived and are not consumed yet, by peer and lane.

    Queues stay when their lane is over, so that what was delivered can still be taken.
    """

    def __init__(self, peers: PeerTable) -> None:
        self._peers = peers
        self._lanes: dict[tuple[int, str], _Lane] = {}
        self._openers: dict[str, Opener] = {}

    def open_early(self, lanes: Collection[str], opener: Opener) -> None:
        """See `Transport.open_early`."""
        with self._peers.lock:
            self._openers.update(dict.fromkeys(lanes, opener))

    def open_lane(self, peer: int, lane: str, give_credit: Callable[[], None], window: int) -> None:
        """Announces a lane of a peer.

        Args:
            window: messages of the lane that may be here unconsumed.
            give_credit: called once per consumed message, from the consuming thread, not under
                a lock.

        Raises:
            ProtocolError: the peer has too many.
        """
        with self._peers.lock:
            if sum(owner == peer for owner, _ in self._lanes) >= MAX_LANES:
                raise ProtocolError(f"node {peer} opens more lanes than the {MAX_LANES} allowed")
            self._lanes[peer, lane] = _Lane(give_credit, window)

    def deliver(self, peer: int, lane: str, message: Message) -> None:
        """Opens a message that arrived on an open lane if it is to be, and queues it.

        Raises:
            ProtocolError: the sender has no credit left.
        """
        if (opener := self._openers.get(lane)) is not None:
            message = _opened(message, opener)
        with self._peers.lock:
            queue = self._lanes[peer, lane]
            if len(queue.messages) >= queue.window:
                raise ProtocolError(
                    f"node {peer} sent more than the {queue.window} messages "
                    f"that lane {lane!r} allows unconsumed"
                )
            queue.messages.append(message)
            self._peers.condition.notify_all()

    def has_message(self, peer: int, lane: str) -> bool:
        """See `Transport.has_message`."""
        with self._peers.lock:
            queue = self._lanes.get((peer, lane))
            return queue is not None and bool(queue.messages)

    def receive(self, peer: int, lane: str, purpose: str, within_s: float | None = None) -> Message:
        """Takes the next message of a lane and credits its sender; see `Transport.receive`."""

        def take() -> tuple[Message, Callable[[], None]] | None:
            queue = self._lanes.get((peer, lane))
            if queue is None or not queue.messages:
                return None
            return queue.messages.popleft(), queue.give_credit

        with self._peers.lock:
            taken = take()  # without what only a wait needs
        if taken is None:
            taken = self._peers.wait(Waiting(peer, "send", lane, purpose, within_s), take)
        message, give_credit = taken
        give_credit()
        return message


def _opened(message: Message, opener: Opener) -> Message:
    try:
        return Message(b"", (), opener(message))
    except Exception as error:  # the receiver's to raise, in its own thread
        _log.debug("a message could not be opened: %s", error)
        return message
