"""A round whose messages come and go while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ravnest.averaging.round import RingRound, Share


class Flight:
    """Runs the exchange of a round in a thread of its own, from now until `join`.

    The thread ends by itself: all its waits are the transport's, which have deadlines, and end at
    once when the transport is closed or aborted. It is a daemon so that a script that dies in its
    own code can get to where its node does that.

    Attributes:
        share: what this node brings.
        rounds: one per ring; nobody else touches them until `join` has returned.
        duration_s: of the exchange, once it is over.
    """

    def __init__(
        self,
        share: Share,
        rounds: Sequence[RingRound],
        exchange: Callable[[Sequence[RingRound]], None],
    ) -> None:
        self.share = share
        self.rounds = rounds
        self.duration_s = 0.0
        self._exchange = exchange
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ravnest-round", daemon=True)
        if rounds:  # else there is nobody to exchange anything with
            self._thread.start()

    def join(self) -> None:
        """Waits for the end of the exchange; raises what it raised."""
        if self.rounds:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        started_s = time.perf_counter()
        try:
            self._exchange(self.rounds)
        except BaseException as error:  # raised where the round lands
            self._error = error
        self.duration_s = time.perf_counter() - started_s
