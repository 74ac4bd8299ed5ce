"""An upper bound for pools of any size: prices of nodes that no cluster is worth more than.

If every possible cluster has a rate of at most the sum of the prices of its nodes, then no plan has
a rate of more than the sum of all prices (weak duality of the linear programme over all clusters).
So a bound needs, for given prices, the largest ratio of any cluster's rate to its price; prices
times this ratio are valid. Nodes alone and pairs are easy: their rates are known; threes are
`threes`' affair. Larger clusters are looked at by their largest E (see `pace`), in windows
E_1 <= E <= E_2. In such a window

    step >= fill L_0 + E_1,    E_k <= E_2 for every stage,    L_0 <= S E_2 / periods,

the last one because no period is shorter than L_0 / S. L_0 is a sum over stages and links, and
price is one too; so for any slope s >= 0 the least price + s L_0 over stages that keep to E_2 is
the length of a shortest path over boundaries, on which each stage takes the node that is best for
it. Every slope gives a line that no cluster of the window is below in the plane of (L_0, price).
Above all lines the product price * (fill L_0 + E_1) is least at a crossing of two of them or at an
end, for along a line it is concave; frequency over it is the largest ratio in the window. The worst
windows are halved until they are no worse than what is known to be true, or very narrow.

What the paths leave out makes the bound larger only: a path may take a node twice; beyond the
sixth stage from the leaf memory counts as at the sixth; nodes are put into classes by the rate of
their links, and a link takes bytes over the smaller of the highest rates of both classes.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from ravnest.planning.inputs.table import Bools, Floats, Ints
from ravnest.planning.search.pace import Pace, Traits

FIRST = 3
"""Stages of the smallest clusters that are looked at by paths; those of fewer are known."""

_KINDS = 6
_RATE_CLASSES = 12
_LONGEST = 10  # stages whose L_0 the flattest slope is made for
_STEEPER = 1.8
_NUM_SLOPES = 7


@dataclass(frozen=True, slots=True)
class Window:
    """Clusters that are looked at together, by their largest E.

    Attributes:
        low_s, high_s: E_1 and E_2.
        slopes: prices of a second of L_0.
    """

    low_s: float
    high_s: float
    slopes: tuple[float, ...]


class Pricing:
    """What does not depend on prices: seconds of every stage on every node.

    Args:
        kinds: positions from the leaf whose memory is told apart, if more than six.
        knows_triples: clusters of three are known by themselves as well, see `threes`.
    """

    def __init__(
        self, pace: Pace, traits: Traits, kinds: int = 0, *, knows_triples: bool = True
    ) -> None:
        self.pace = pace
        self.most_stages = min(len(traits), pace.most_stages)
        self.start, self.end = np.nonzero(pace.is_stage)
        self.index_of: Ints = np.full((pace.size, pace.size), -1)
        self.index_of[self.start, self.end] = np.arange(len(self.start))
        self._classify(traits)
        traits = self.traits
        others = pace.update_flops[self.start, self.end][:, None] / traits.flops
        others = others + pace.sent_per_step[self.start, self.end][:, None] / traits.rate
        sides = (self.start > 0).astype(np.float64) + (self.end < pace.size - 1)
        delays = 2.0 * sides[:, None] * traits.latency_s
        work = pace.work[self.start, self.end][:, None] / traits.flops
        # A leaf never recomputes, other stages may.
        factors = sorted({pace.factor(1), pace.factor(2)})
        self.computing = [factor * work for factor in factors]  # C_k: [pair, node]
        self.seconds = [each + delays for each in self.computing]  # a_k without bytes on links
        busy = [pace.busy(each, traits, self.start, self.end) for each in self.computing]
        self.excess = [pace.periods * each + others for each in busy]  # E_k of those
        self._others: Floats = others
        self.num_kinds = min(self.most_stages, max(_KINDS, kinds))
        places = range(1, self.num_kinds + 1)
        self.fits = [pace.fits(traits, place)[:, self.start, self.end].T for place in places]
        self.fitting = [self._numbers_fitting(each) for each in self.fits]
        self.first = FIRST + knows_triples
        whole = self.pair(0, pace.size - 1)
        step_s = pace.step_time(self.computing[0][whole], self.excess[0][whole])
        rates = pace.microbatch_rate(step_s)
        self.alone: Floats = np.where(self.fits[0][whole], rates, 0.0)

    def variant(self, kind: int) -> int:
        """Index of the seconds of stages of a kind, the position from the leaf less one."""
        return min(kind, len(self.seconds) - 1)

    def _numbers_fitting(self, fits: Bools) -> Ints:
        """How many nodes of each class fit, which are its first: [pair, class]."""
        return np.add.reduceat(fits.astype(np.int64), self.offsets, axis=1)

    @functools.cached_property
    def pairs(self) -> Floats:
        """Microbatches per second of every two nodes, [root, leaf]; 0 where they do not fit."""
        pace, traits = self.pace, self.traits
        number = len(self.order)
        best = np.full((number, number), np.inf)
        if self.most_stages < 2:
            return np.zeros_like(best)
        slower = np.minimum(traits.rate[:, None], traits.rate)
        delay = 2.0 * (traits.latency_s[:, None] + traits.latency_s)
        num_bytes = pace.activation_bytes + pace.gradient_bytes
        for cut in range(1, pace.size - 1):
            first, last = self.pair(0, cut), self.pair(cut, pace.size - 1)
            if first < 0 or last < 0:
                continue
            fits = self.fits[1][first][:, None] & self.fits[0][last]
            if not fits.any():
                continue
            root = self.variant(1)
            root_s, leaf_s = self.computing[root][first][:, None], self.computing[0][last]
            loop = root_s + leaf_s + num_bytes[cut] / slower + delay
            waiting = pace.periods * loop / 2 + self._others[first][:, None]
            own = np.maximum(self.excess[root][first][:, None], self.excess[0][last])
            excess = np.maximum(waiting, own)
            np.minimum(best, np.where(fits, pace.is_flushed * loop + excess, np.inf), out=best)
        np.fill_diagonal(best, np.inf)
        return np.where(np.isfinite(best), pace.microbatch_rate(best), 0.0)

    def _classify(self, traits: Traits) -> None:
        """Classes of link rates, each as fast as its fastest member, and of kinds of memory.

        Nodes are put in order of class, and in a class in descending order of memory.
        """
        rates = np.unique(traits.rate)
        if len(rates) > _RATE_CLASSES:
            cuts = np.linspace(0, len(rates) - 1, _RATE_CLASSES + 1)[1:].round().astype(int)
            rates = rates[np.unique(cuts)]
        of_rate = np.searchsorted(rates, traits.rate)
        both = 2 * of_rate + traits.accelerated
        self.order: Ints = np.lexsort((np.arange(len(both)), -traits.memory, both))
        self.traits = traits.take(self.order)
        kinds, self.offsets, self.classes = np.unique(
            both[self.order], return_index=True, return_inverse=True
        )
        own = rates[kinds // 2]
        slower = np.minimum(own[:, None], own[None, :])
        num_bytes = self.pace.activation_bytes + self.pace.gradient_bytes
        self.links: Floats = num_bytes / slower[..., None]  # [class, class, boundary]

    def windows(self, step: float, num_slopes: int = _NUM_SLOPES) -> list[Window]:
        """Windows over all E that clusters of several stages can have, a factor of `step` each."""
        pace, speeds = self.pace, self.traits.flops
        operations = float(pace.work[0, -1])
        high = 4.0 * pace.frequency * operations / float(speeds.min())
        low = max(pace.periods * self.least_loop / self.most_stages, 1e-6 * high)
        edges = np.geomspace(low, high, 2 + int(np.log(high / low) / np.log(step))).tolist()
        if not pace.periods:
            edges = [0.0, *edges]
        return [self.window(*ends, num_slopes) for ends in itertools.pairwise(edges)]

    def window(self, low_s: float, high_s: float, num_slopes: int = _NUM_SLOPES) -> Window:
        """One window with its slopes."""
        return Window(low_s, high_s, self._slopes(high_s, num_slopes))

    @property
    def least_loop(self) -> float:
        """No cluster has a shorter L_0: the fastest node computing everything."""
        return float(self.pace.work[0, -1] / self.traits.flops.max())

    def _slopes(self, excess: float, number: int) -> tuple[float, ...]:
        """0, and from where the curve price * step = frequency is touched at long loops upwards.

        The steep ones say what it takes to keep L_0 within the window.
        """
        pace = self.pace
        longest = _LONGEST * excess / max(pace.periods, 1)
        flattest = pace.frequency / (pace.is_flushed * longest + excess) ** 2
        return (0.0, *(flattest * _STEEPER**k for k in range(number)))

    def allowed(self, window: Window) -> list[Floats]:
        """Seconds of stages, infinite where they do not keep to a window."""
        limit = window.high_s * (1 + 1e-9)
        return [
            np.where(excess <= limit, seconds, np.inf)
            for seconds, excess in zip(self.seconds, self.excess, strict=True)
        ]

    def in_pool_order(self, values: Floats) -> Floats:
        """Values by node as the caller numbers them."""
        found = np.empty_like(values)
        found[self.order] = values
        return found

    def pair(self, start: int, end: int) -> int:
        """Index of a pair of boundaries."""
        return int(self.index_of[start, end])

    def rate_of(self, chain: list[int], cuts: list[int]) -> float:
        """What the bound takes for the rate of a cluster, no node's memory looked at."""
        stages, loop, excess = len(chain), 0.0, 0.0
        for index, node in enumerate(chain):
            variant = self.variant(stages - index - 1)
            pair = self.pair(cuts[index], cuts[index + 1])
            loop += float(self.seconds[variant][pair, node])
            excess = max(excess, float(self.excess[variant][pair, node]))
            if index:
                one, other = self.classes[chain[index - 1]], self.classes[node]
                loop += float(self.links[one, other, cuts[index]])
        excess = max(excess, self.pace.periods * loop / stages)
        return self.pace.frequency / (self.pace.is_flushed * loop + excess)


def worth_of_pairs(pricing: Pricing, prices: Floats) -> Floats:
    """Rate over price, [root, leaf]."""
    found: Floats = pricing.pairs / (prices[:, None] + prices)
    return found
