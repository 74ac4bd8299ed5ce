"""The numbers of a lane: what is kept to be sent again, and how far its receiver is.

Knows no streams and no threads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ravnest.errors import ProtocolError
from ravnest.transport.interface import Message


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the receiver of a lane is, in messages since the lane began.

    Attributes:
        num_received: that have come, whole.
        num_consumed: of these, that were taken out of the window.
    """

    num_received: int = 0
    num_consumed: int = 0


class Backlog:
    """Keeps each message of a lane from when it is sent until the receiver has it.

    Messages are counted from 0 on. None is copied: what is kept are the sender's own buffers. A
    sender may change one once it knows, however it knows, that the message was received; then
    the receiver will never ask for it again, whether its acknowledgement has come or not.

    Args:
        lane: its name, for errors.
    """

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._kept: deque[Message] = deque()
        self._num_received = 0

    @property
    def num_sent(self) -> int:
        """Messages so far, which is the number of the next one."""
        return self._num_received + len(self._kept)

    @property
    def num_kept(self) -> int:
        """Messages of which it is not known that they were received."""
        return len(self._kept)

    def append(self, message: Message) -> None:
        """Keeps the next message."""
        self._kept.append(message)

    def acknowledge(self, num_received: int) -> None:
        """Forgets what was received; nothing when that is old news.

        Raises:
            ProtocolError: more were received than were sent.
        """
        if num_received > self.num_sent:
            raise ProtocolError(
                f"{num_received} messages of lane {self._lane!r} are said to have been received; "
                f"{self.num_sent} were sent"
            )
        while self._num_received < num_received:
            self._kept.popleft()
            self._num_received += 1

    def rest(self, num_received: int) -> list[Message]:
        """All messages that the receiver does not have, in order; acknowledges those before.

        Raises:
            ProtocolError: more were received than were sent, or fewer than were acknowledged
                before.
        """
        if num_received < self._num_received:
            raise ProtocolError(
                f"lane {self._lane!r} is to go on with message {num_received}; it and those "
                f"up to {self._num_received} were acknowledged before"
            )
        self.acknowledge(num_received)
        return list(self._kept)
