"""Messages of one kind from one simulated stage to another: how long they take on the way."""

from __future__ import annotations

from random import Random
from typing import Generic, TypeVar

from ravnest.plan.prediction import Traffic

Target = TypeVar("Target")

Record = list[tuple[int, int, float, float]]
"""Kind (of a message: 0), number, begin and end."""


class OutgoingLane(Generic[Target]):
    """Messages of one kind from one stage to another.

    Args:
        target: who receives; of no concern here.
        arrivals: the receiving end's list of arrival times, by position of the message.
        sending_s: that a message occupies the sender's uplink.
        receiving_s: that it occupies the receiver's downlink.
        latency_s: from a byte's leaving to its arrival.
        record: gets every transmission, None to forget them.
    """

    __slots__ = (
        *("target", "arrivals", "sending_s", "receiving_s", "latency_s", "traffic", "num_bytes"),
        *("jitter_s", "random", "num_sent", "record", "_came_s"),
    )

    def __init__(
        self,
        target: Target,
        arrivals: list[float],
        traffic: Traffic,
        num_bytes: int,
        sending_s: float,
        receiving_s: float,
        latency_s: float,
        record: Record | None,
    ) -> None:
        self.target = target
        self.arrivals = arrivals
        self.traffic = traffic
        self.num_bytes = num_bytes
        self.sending_s = sending_s
        self.receiving_s = receiving_s
        self.latency_s = latency_s
        self.jitter_s = 0.0
        self.random: Random | None = None
        self.num_sent = 0
        self.record = record
        self._came_s = 0.0

    @property
    def seconds(self) -> float:
        """From a message's first byte to its last: as fast as the slower end."""
        return max(self.sending_s, self.receiving_s)

    def delay_s(self, begin_s: float) -> float:
        """Of a message that begins to be sent then; it never overtakes an earlier one."""
        if self.random is None:
            return self.latency_s
        came_s = begin_s + self.latency_s + self.random.expovariate(1.0 / self.jitter_s)
        self._came_s = max(self._came_s, came_s)
        return self._came_s - begin_s
