"""What may differ from the plan in a simulated run: length, jitter, speeds, failures. Pure data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ravnest.errors import ConfigError

LOST_AFTER_S = 20.0
"""A node that is silent for longer is lost to its neighbours: the transport's keepalive."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A node that stops.

    Attributes:
        node_id: the node.
        at_s: when, from the start of the run.
        duration_s: it is frozen or cut off for so long and then goes on where it was; None when its
            process ends.
    """

    node_id: int
    at_s: float
    duration_s: float | None = None

    def __post_init__(self) -> None:
        where = f"failure of node {self.node_id}"
        _require(where, "at_s", self.at_s, self.at_s >= 0, "0 or more seconds")
        if self.duration_s is not None:
            is_right = self.duration_s > 0
            _require(where, "duration_s", self.duration_s, is_right, "more than 0 seconds, or None")

    @property
    def ends_cluster_at_s(self) -> float:
        """When its cluster ends because of it; infinite when the cluster outlives it."""
        if self.duration_s is None:
            return self.at_s
        return self.at_s + LOST_AFTER_S if self.duration_s > LOST_AFTER_S else math.inf


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """How a plan is run.

    Attributes:
        num_steps: optimizer steps of every cluster; None for enough to see the steady state, and
            two averaging rounds where there are any.
        seed: of everything random; the same seed gives the same result.
        jitter_s: mean of an exponentially distributed delay that every message has on top of its
            latency. Messages of a lane stay in order.
        speeds: by node id, how fast it computes beside what the plan says: 0.5 is half as fast.
        speed_variation: standard deviation of the time of one pass over its mean; log-normal.
        failures: nodes that stop.
        timeline: keep every interval of every node and link.
    """

    num_steps: int | None = None
    seed: int = 0
    jitter_s: float = 0.0
    speeds: Mapping[int, float] = field(default_factory=dict)
    speed_variation: float = 0.0
    failures: tuple[Failure, ...] = ()
    timeline: bool = False

    def __post_init__(self) -> None:
        steps = self.num_steps
        if steps is not None:
            is_right = isinstance(steps, int) and not isinstance(steps, bool) and steps > 0
            _require("a simulation", "num_steps", steps, is_right, "a whole number from 1 on")
        for name in ("jitter_s", "speed_variation"):
            value = getattr(self, name)
            _require("a simulation", name, value, 0 <= value < math.inf, "a finite number from 0")
        for node_id, speed in self.speeds.items():
            is_right = 0 < speed < math.inf
            _require(f"node {node_id}", "speed", speed, is_right, "a finite number above 0")


def _require(where: str, name: str, value: object, is_right: bool, expected: str) -> None:
    if not is_right:
        raise ConfigError(f"{name} of {where} is {value!r}; expected {expected}")
