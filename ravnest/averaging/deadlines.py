"""How long a member waits for another within a round: by how long it has waited before."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Hashable, Mapping

NUM_KEPT = 64
"""Rounds that are remembered."""
NUM_NEEDED = 8
"""Rounds before which nothing is concluded."""
NUM_DEVIATIONS = 10.0
LEAST_SHARE = 0.1
"""Of the timeout: no deadline is shorter, so that a hiccup of the network ends nothing."""
_NORMAL = 1.4826  # a normal distribution's standard deviation over its median deviation


class Deadlines:
    """One deadline per kind of message and sender, all derived of one timeout.

    The median of the longest waits of earlier rounds, plus a multiple of their deviation from it,
    both robust against single late ones; never above the timeout, nor below a share of it.

    Args:
        timeout_s: the one knob.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._waits: dict[Hashable, deque[float]] = {}
        self._deadlines: dict[Hashable, float] = {}

    def of(self, key: Hashable) -> float:
        """Seconds that a message may take, from when it is awaited."""
        return self._deadlines.get(key, self._timeout_s)

    def note(self, longest_waits: Mapping[Hashable, float]) -> None:
        """A round went well; in it these were the longest waits, in seconds, by key."""
        for key, waited_s in longest_waits.items():
            waits = self._waits.setdefault(key, deque(maxlen=NUM_KEPT))
            waits.append(waited_s)
            if len(waits) >= NUM_NEEDED:
                self._deadlines[key] = self._deadline_s(waits)

    def _deadline_s(self, waits: deque[float]) -> float:
        median = statistics.median(waits)
        deviation = _NORMAL * statistics.median(abs(each - median) for each in waits)
        expected = median + NUM_DEVIATIONS * deviation
        return min(max(expected, LEAST_SHARE * self._timeout_s), self._timeout_s)
