"""Price, seconds and E of every stage on every node, whatever the cluster; see `pace`."""

from __future__ import annotations

import numpy as np

from ravnest.planning.inputs.table import Bools, Floats, Ints
from ravnest.planning.search.pace import Pace, Traits

KINDS = 6
"""Positions from the leaf whose memory is told apart; further ones count as the last of them."""

MANY_KINDS = 48
"""The same where a node may be in a cluster twice.

With fewer, nodes of little memory seem to hold stages of clusters that are too long for them.
"""


class StageCosts:
    """Stages by pair of boundaries: [pair, node] where an attribute says nothing else.

    Attributes:
        start, end: boundaries of each pair.
        index_of: pair of two boundaries, -1 where they are no stage: [start, end].
        leaf, computing: C_k of a leaf and of other stages.
        leaf_busy, busy: B_k of them.
        update: U_k.
        num_bytes: over a link at each boundary, both ways.
        num_kinds: positions from the leaf that are told apart.
        first_fitting: by kind, the first start from which a node holds a stage: [end, node]; no
            less than the number of boundaries where there is none.
    """

    def __init__(self, pace: Pace, traits: Traits, kinds: int = KINDS) -> None:
        self.pace, self.traits = pace, traits
        self.start, self.end = np.nonzero(pace.is_stage)
        self.index_of: Ints = np.full((pace.size, pace.size), -1)
        self.index_of[self.start, self.end] = np.arange(len(self.start))
        work = pace.work[self.start, self.end][:, None] / traits.flops
        self.leaf: Floats = pace.factor(1) * work
        self.computing: Floats = pace.factor(2) * work
        self.leaf_busy: Floats = pace.busy(self.leaf, traits, self.start, self.end)
        self.busy: Floats = pace.busy(self.computing, traits, self.start, self.end)
        update = pace.update_flops[self.start, self.end][:, None] / traits.flops
        sent = pace.sent_per_step[self.start, self.end][:, None] / traits.rate
        self.update: Floats = update + sent
        self.num_bytes: Floats = pace.activation_bytes + pace.gradient_bytes
        self.most_stages = min(len(traits), pace.most_stages)
        self.num_kinds = min(kinds, self.most_stages)
        self._fits = [self._fitting(place) for place in range(1, self.num_kinds + 1)]
        self.first_fitting = [self._first_fitting(fits) for fits in self._fits]

    def fits(self, place: int) -> Bools:
        """Whether a stage fits so many stages from the leaf, itself included."""
        return self._fits[min(place, len(self._fits)) - 1]

    def _fitting(self, place: int) -> Bools:
        return self.pace.fits(self.traits, place)[:, self.start, self.end].T

    def _first_fitting(self, fits: Bools) -> Ints:
        first = np.full((self.pace.size, len(self.traits)), self.pace.size)
        rows, nodes = np.nonzero(fits)
        np.minimum.at(first, (self.end[rows], nodes), self.start[rows])
        return first

    def link(self, boundary: Ints, one: Ints, other: Ints) -> Floats:
        """Seconds that a link at a boundary takes, both ways per microbatch."""
        slower = np.minimum(self.traits.rate[one], self.traits.rate[other])
        delay = 2.0 * (self.traits.latency_s[one] + self.traits.latency_s[other])
        seconds: Floats = self.num_bytes[boundary] / slower + delay
        return seconds
