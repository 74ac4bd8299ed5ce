"""What an averaging round between the clusters of a plan takes, and what its links carry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ravnest.capture.costs import ParameterCost
from ravnest.plan.parts import RingPlan
from ravnest.plan.prediction import LinkPrediction, Traffic
from ravnest.planning.clustering.clusters import Formation
from ravnest.planning.search.pace import latency_of, rate_between


class AveragingRound:
    """A round over all rings at once, as a ring all-reduce moves 2 (C - 1) / C of the bytes.

    Args:
        stored: parameters and persistent buffers.

    Attributes:
        seconds: of a round; 0 with one cluster.
    """

    def __init__(
        self, stored: Sequence[ParameterCost], formation: Formation, rings: Sequence[RingPlan]
    ) -> None:
        self._nodes = {node.node_id: node for c in formation.clusters for node in c.nodes}
        self._bytes: dict[tuple[int, int], int] = {}
        self.seconds = 0.0
        number = len(formation.clusters)
        if number == 1:
            return
        sizes = {tensor.name: tensor.num_bytes for tensor in stored}
        sent_s: defaultdict[int, float] = defaultdict(float)
        delays = 0.0
        for ring in rings:
            whole = sum(sizes[name] for name in (*ring.parameters, *ring.buffers))
            num_bytes = round(2 * (number - 1) * whole / number)
            pairs = list(zip(ring.members, (*ring.members[1:], ring.members[0]), strict=True))
            slowest = min(self._rate(pair) for pair in pairs)
            for pair in pairs:
                self._bytes[pair] = self._bytes.get(pair, 0) + num_bytes
                sent_s[pair[0]] += num_bytes / slowest  # the slowest link paces the whole ring
            delays = max(delays, *(self._latency(pair) for pair in pairs))
        # Headers and votes go around the ring too: C - 1 hops each, as in either half of the rest.
        self.seconds = max(sent_s.values()) + 4 * (number - 1) * delays

    def links(self, between_rounds_s: float) -> Iterator[LinkPrediction]:
        """From every member to the next; loads are shares of the time between two rounds."""
        for (source, target), num_bytes in self._bytes.items():
            seconds = num_bytes / self._rate((source, target))
            yield LinkPrediction(
                source=source,
                target=target,
                traffic=Traffic.AVERAGING,
                num_bytes=num_bytes,
                seconds=seconds,
                latency_s=self._latency((source, target)),
                load=seconds / max(between_rounds_s, 1e-9),
            )

    def _rate(self, pair: tuple[int, int]) -> float:
        return rate_between(self._nodes[pair[0]], self._nodes[pair[1]])

    def _latency(self, pair: tuple[int, int]) -> float:
        return latency_of(self._nodes[pair[0]]) + latency_of(self._nodes[pair[1]])
