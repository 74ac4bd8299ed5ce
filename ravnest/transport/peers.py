"""Where each peer of a transport stands, and the one wait that every blocked call goes through.

Knows states, deadlines and words; knows nothing of how bytes travel.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ravnest.errors import (
    PeerFailedError,
    PeerLostError,
    PeerUnreachableError,
    ProtocolError,
    TransportError,
)
from ravnest.transport.interface import TransportSettings
from ravnest.transport.peer_state import Lifecycle, PeerState

_log = logging.getLogger(__name__)

T = TypeVar("T")

# Members of enumerations are looked up by a call each time; these are for every message.
_OPEN, _RECONNECTING = Lifecycle.OPEN, PeerState.RECONNECTING


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a blocked call waits for.

    Attributes:
        peer: who has to act.
        action: what it has to do: "send", or "take in" when a window is exhausted.
        lane: the lane it concerns.
        purpose: the caller's words, such as "gradient of microbatch 0.17".
        within_s: an earlier deadline than that of the transport, for a peer whose link holds.
    """

    peer: int
    action: str
    lane: str
    purpose: str
    within_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Ending:
    peer: int
    error: type[TransportError]
    text: str


class PeerTable:
    """States of all peers under one condition.

    The first peer that fails or is lost ends every wait, whomever it is for: a cluster that
    misses a node cannot go on, and whoever waits should hear the first cause, at once. A peer
    that left in good order only ends the waits for itself.

    Args:
        node_id: the node whose transport this is.
        settings: deadline and report interval of every wait.
        locate: words for a peer's place, such as "10.0.0.2:8080".
        probe: finds out why a peer is not there; may take seconds, never called under the lock.
    """

    def __init__(
        self,
        node_id: int,
        settings: TransportSettings,
        *,
        locate: Callable[[int], str],
        probe: Callable[[int], str],
    ) -> None:
        # Entered itself, several times for every message: a condition passes that on with a call.
        self.lock = threading.RLock()
        self.condition = threading.Condition(self.lock)
        self._node_id = node_id
        self._settings = settings
        self._locate = locate
        self._probe = probe
        self._lifecycle = Lifecycle.NEW
        self._states: dict[int, PeerState] = {}
        self._endings: dict[int, _Ending] = {}
        self._first: _Ending | None = None

    @property
    def lifecycle(self) -> Lifecycle:
        """Where the transport itself stands."""
        with self.lock:
            return self._lifecycle

    def open(self) -> None:
        """Marks the transport as started; TransportError when it was before."""
        with self.lock:
            if self._lifecycle is not Lifecycle.NEW:
                raise TransportError(
                    f"the transport of node {self._node_id} is {self._lifecycle}; it starts once"
                )
            self._lifecycle = Lifecycle.OPEN

    def close(self) -> Lifecycle:
        """Ends every wait of this transport and returns where it stood before."""
        with self.lock:
            before = self._lifecycle
            self._lifecycle = Lifecycle.CLOSED
            self.condition.notify_all()
            return before

    def state(self, peer: int) -> PeerState:
        """Where a peer stands."""
        with self.lock:
            return self._states.get(peer, PeerState.ABSENT)

    def connected(self, peer: int) -> None:
        """The peer has come, or is back."""
        self._move(peer, PeerState.CONNECTED, None)

    def broke(self, peer: int) -> None:
        """The link to the peer broke; it is to be made again."""
        self._move(peer, PeerState.RECONNECTING, None)

    def left(self, peer: int) -> None:
        """The peer said goodbye."""
        text = f"node {peer} at {self._locate(peer)} has closed in good order"
        self._move(peer, PeerState.LEFT, _Ending(peer, PeerLostError, text))

    def failed(self, peer: int, cause: str) -> None:
        """The peer said that it failed."""
        text = f"node {peer} failed: {cause}"
        self._move(peer, PeerState.FAILED, _Ending(peer, PeerFailedError, text))

    def lost(self, peer: int, cause: str) -> None:
        """The peer is gone without a word."""
        text = f"node {peer} at {self._locate(peer)} is lost: {cause}"
        self._move(peer, PeerState.LOST, _Ending(peer, PeerLostError, text))

    def broke_protocol(self, peer: int, cause: str) -> None:
        """The peer and this node do not understand each other; nothing goes between them."""
        text = f"node {peer} at {self._locate(peer)} cannot be talked to: {cause}"
        self._move(peer, PeerState.LOST, _Ending(peer, ProtocolError, text))

    def _move(self, peer: int, state: PeerState, ending: _Ending | None) -> None:
        with self.lock:
            if not self._states.get(peer, PeerState.ABSENT).may_become(state):
                return  # Late news of a peer whose ending is known: the first cause stands.
            self._states[peer] = state
            if ending is not None:
                self._endings[peer] = ending
                if state is not PeerState.LEFT and self._first is None:
                    self._first = ending
            self.condition.notify_all()

    def check(self, peer: int, purpose: str) -> None:
        """Raises when nothing can be exchanged with this peer any more."""
        with self.lock:
            if self._lifecycle is not _OPEN:
                raise TransportError(
                    f"the transport of node {self._node_id} is {self._lifecycle}; "
                    f"it cannot exchange {purpose} with node {peer}"
                )
            if (ending := self._endings.get(peer)) is not None:
                raise ending.error(f"{ending.text} (awaited: {purpose})")

    def wait(self, waiting: Waiting, attempt: Callable[[], T | None]) -> T:
        """Calls `attempt` under the lock, now and after every change, until it gives a value.

        Raises:
            PeerUnreachableError: the deadline has passed and the peer never came.
            PeerLostError: it passed with the peer connected, or the peer left, or any peer is lost.
            PeerFailedError: any peer failed.
            TransportError: this transport was closed meanwhile.
        """
        started = time.monotonic()
        limit_s = self._limit_s(waiting)
        report_at = started + self._settings.report_every_s
        while True:
            with self.lock:
                while True:
                    if (value := attempt()) is not None:
                        return value
                    self._raise_if_hopeless(waiting)
                    if self._states.get(waiting.peer) is _RECONNECTING:
                        # An earlier deadline is for peers that could answer.
                        limit_s = self._settings.timeout_s
                    now, deadline = time.monotonic(), started + limit_s
                    if now >= min(report_at, deadline):
                        break
                    self.condition.wait(min(report_at, deadline) - now)
            # Outside the lock: to find out why a peer is away takes a while.
            if now >= deadline:
                raise self._too_late(waiting, limit_s)
            self._report(waiting, now - started, limit_s)
            report_at = now + self._settings.report_every_s

    def _limit_s(self, waiting: Waiting) -> float:
        longest = self._settings.timeout_s
        return longest if waiting.within_s is None else min(waiting.within_s, longest)

    def _raise_if_hopeless(self, waiting: Waiting) -> None:
        self.check(waiting.peer, waiting.purpose)
        if self._first is not None:
            raise self._first.error(
                f"{self._first.text} (met while waiting for node {waiting.peer} "
                f"to {waiting.action} {waiting.purpose})"
            )

    def _report(self, waiting: Waiting, waited_s: float, limit_s: float) -> None:
        state = self.state(waiting.peer)
        standing: str = state
        if state is PeerState.ABSENT:
            standing = f"never seen; last error: {self._probe(waiting.peer)}"
        _log.log(
            logging.INFO if state is PeerState.CONNECTED else logging.WARNING,
            "node %d is waiting for node %d at %s to %s %s, %.0f s of %g s; %s",
            self._node_id,
            waiting.peer,
            self._locate(waiting.peer),
            waiting.action,
            waiting.purpose,
            waited_s,
            limit_s,
            standing,
        )

    def _too_late(self, waiting: Waiting, limit_s: float) -> TransportError:
        peer, place = waiting.peer, self._locate(waiting.peer)
        state = self.state(peer)
        if state is PeerState.ABSENT:
            return PeerUnreachableError(
                f"node {peer} at {place} did not come within {limit_s:g} s; "
                f"last error: {self._probe(peer)}; it was to {waiting.action} {waiting.purpose}",
                hint=f"start node_{peer}, and see that {place} is its address and is not blocked",
            )
        return PeerLostError(
            f"node {peer} at {place} is {state} but did not {waiting.action} {waiting.purpose} "
            f"on lane {waiting.lane!r} within {limit_s:g} s",
            hint=f"see the log of node_{peer}; raise timeout_s when a step may take that long",
        )
