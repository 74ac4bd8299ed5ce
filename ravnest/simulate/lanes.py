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
        seconds: that a message occupies the sender's uplink.
        latency_s: from the last byte's leaving to its arrival.
        record: gets every transmission, None to forget them.
    """

    __slots__ = (
        *("target", "arrivals", "seconds", "latency_s", "traffic", "num_bytes"),
        *("jitter_s", "random", "num_sent", "record"),
    )

    def __init__(
        self,
        target: Target,
        arrivals: list[float],
        traffic: Traffic,
        num_bytes: int,
        seconds: float,
        latency_s: float,
        record: Record | None,
    ) -> None:
        self.target = target
        self.arrivals = arrivals
        self.traffic = traffic
        self.num_bytes = num_bytes
        self.seconds = seconds
        self.latency_s = latency_s
        self.jitter_s = 0.0
        self.random: Random | None = None
        self.num_sent = 0
        self.record = record

    def arrival(self, sent_s: float) -> float:
        """When a message arrives whose last byte has left; never before an earlier one."""
        arrival_s = sent_s + self.latency_s
        if self.random is not None:
            arrival_s += self.random.expovariate(1.0 / self.jitter_s)
            if self.arrivals and self.arrivals[-1] > arrival_s:
                arrival_s = self.arrivals[-1]
        return arrival_s
