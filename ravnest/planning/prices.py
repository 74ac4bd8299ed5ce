"""An upper bound for pools of any size: prices of nodes that no cluster is worth more than.

If every possible cluster has a rate of at most the sum of the prices of its nodes, then no plan has
a rate of more than the sum of all prices (weak duality of the linear programme over all clusters).
So a bound needs, for given prices, the largest ratio of any cluster's rate to its price; prices
times this ratio are valid. Nodes alone and pairs are easy: their rates are known. Clusters of more
stages are looked at by their largest E (see `pace`), in windows E_1 <= E <= E_2. In such a window

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
import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ravnest.planning.pace import Pace, Traits
from ravnest.planning.table import Floats, Ints

FIRST = 3
"""Stages of the smallest clusters that are bounded; those of fewer are known."""

_KINDS = 6
_RATE_CLASSES = 8
_WIDEST = 1.25
_NARROWEST = 1.005
_LONGEST = 10  # stages whose L_0 the flattest slope is made for
_STEEPER = 1.7
_NUM_SLOPES = 8
_PROMISING = 0.6
_TINY = 1e-300


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
    """

    def __init__(self, pace: Pace, traits: Traits, kinds: int = 0) -> None:
        self.pace = pace
        self.most_stages = min(len(traits), pace.most_stages)
        self.start, self.end = np.nonzero(pace.is_stage)
        self._index: Ints = np.full((pace.size, pace.size), -1)
        self._index[self.start, self.end] = np.arange(len(self.start))
        self._classify(traits)
        traits = self.traits
        others = pace.update_flops[self.start, self.end][:, None] / traits.flops
        others = others + pace.sent_per_step[self.start, self.end][:, None] / traits.rate
        sides = (self.start > 0).astype(np.float64) + (self.end < pace.size - 1)
        self.seconds: list[Floats] = []  # a_k without bytes on links: [pair, node]
        self.excess: list[Floats] = []  # E_k, of computing alone
        for in_flight in range(1, min(self.most_stages, max(_KINDS, kinds)) + 1):
            computing = pace.factor(in_flight) * pace.work[self.start, self.end][:, None]
            computing = computing / traits.flops
            fits = pace.fits(traits, in_flight)[:, self.start, self.end].T
            delays = 2.0 * sides[:, None] * traits.latency_s
            self.seconds.append(np.where(fits, computing + delays, np.inf))
            self.excess.append(pace.periods * computing + others)
        self._least_loops: dict[float, Floats] = {}
        whole = self.pair(0, pace.size - 1)
        alone = pace.step_time(self.seconds[0][whole], self.excess[0][whole])
        self.alone: Floats = np.where(np.isfinite(alone), pace.microbatch_rate(alone), 0.0)

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
            fits = np.isfinite(self.seconds[1][first])[:, None] & np.isfinite(self.seconds[0][last])
            if not fits.any():
                continue
            root_s, leaf_s = self._computing(1, first)[:, None], self._computing(0, last)
            loop = root_s + leaf_s + num_bytes[cut] / slower + delay
            longer = pace.periods * np.maximum(0.0, loop / 2 - root_s)
            excess = np.maximum(self.excess[1][first][:, None] + longer, self.excess[0][last])
            np.minimum(best, np.where(fits, pace.is_flushed * loop + excess, np.inf), out=best)
        np.fill_diagonal(best, np.inf)
        return np.where(np.isfinite(best), pace.microbatch_rate(best), 0.0)

    def _computing(self, kind: int, pair: int) -> Floats:
        work = self.pace.work[self.start[pair], self.end[pair]]
        found: Floats = self.pace.factor(kind + 1) * work / self.traits.flops
        return found

    def _classify(self, traits: Traits) -> None:
        """Classes of link rates, each as fast as its fastest member; nodes in order of class."""
        rates = np.unique(traits.rate)
        if len(rates) > _RATE_CLASSES:
            cuts = np.linspace(0, len(rates) - 1, _RATE_CLASSES + 1)[1:].round().astype(int)
            rates = rates[np.unique(cuts)]
        classes = np.searchsorted(rates, traits.rate)
        self.order: Ints = np.argsort(classes, kind="stable")
        self.classes: Ints = classes[self.order]
        self.traits = traits.take(self.order)
        self.offsets: Ints = np.searchsorted(self.classes, np.arange(len(rates)))
        slower = np.minimum(rates[:, None], rates[None, :])
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

    def least_loops(self, window: Window) -> Floats:
        """The shortest L_0 of clusters of each number of stages that keep to a window."""
        if window.high_s not in self._least_loops:
            free = Paths(self, np.zeros(len(self.order)), Window(0.0, window.high_s, (1.0,)))
            found = [np.inf] * FIRST
            found += [float(free.least(each)[0]) for each in range(FIRST, self.most_stages + 1)]
            self._least_loops[window.high_s] = np.array(found)
        return self._least_loops[window.high_s]

    def allowed(self, window: Window, kind: int) -> Floats:
        """Seconds of stages, infinite where they do not keep to a window."""
        keeps = self.excess[kind] <= window.high_s * (1 + 1e-9)
        return np.where(keeps, self.seconds[kind], np.inf)

    def is_possible(self, window: Window, stages: int) -> bool:
        """Whether the paths of the bound let any cluster of so many stages be in a window."""
        least, longest = self.least_loops(window)[stages], self.longest_loop(window, stages)
        return bool(np.isfinite(least) and least <= longest * (1 + 1e-9))

    def longest_loop(self, window: Window, stages: int) -> float:
        """The longest L_0 of a cluster in a window: a period is no shorter than L_0 / stages."""
        if not self.pace.periods:
            return 1e9 * self.least_loop
        return stages * window.high_s / self.pace.periods

    def in_pool_order(self, values: Floats) -> Floats:
        """Values by node as the caller numbers them."""
        found = np.empty_like(values)
        found[self.order] = values
        return found

    def pair(self, start: int, end: int) -> int:
        """Index of a pair of boundaries."""
        return int(self._index[start, end])

    def rate_of(self, chain: list[int], cuts: list[int]) -> float:
        """What the bound takes for the rate of a cluster, no node's memory looked at."""
        stages, loop, excess = len(chain), 0.0, 0.0
        for index, node in enumerate(chain):
            kind = min(stages - index, len(self.seconds)) - 1
            pair = self.pair(cuts[index], cuts[index + 1])
            loop += float(self.seconds[kind][pair, node])
            excess = max(excess, float(self.excess[kind][pair, node]))
            if index:
                one, other = self.classes[chain[index - 1]], self.classes[node]
                loop += float(self.links[one, other, cuts[index]])
        excess = max(excess, self.pace.periods * loop / stages)
        return self.pace.frequency / (self.pace.is_flushed * loop + excess)


class Paths:
    """Shortest paths by price + slope * seconds, for all slopes of a window.

    Arrays have an axis of slopes first. A class is that of a node's link.
    """

    def __init__(self, pricing: Pricing, prices: Floats, window: Window) -> None:
        self._p, self._prices, self.window = pricing, prices, window
        self._size = pricing.pace.size
        self.slopes = np.array(window.slopes)
        self._links = self.slopes[:, None, None, None] * pricing.links
        kinds = range(len(pricing.seconds))
        self._stage = [self._by_class(pricing.allowed(window, kind)) for kind in kinds]
        last = np.full((len(self.slopes), self._size, pricing.links.shape[0]), np.inf)
        last[:, -1] = 0.0
        self._onward = [last]  # by position from the leaf: [slope, boundary, class]
        self._before: dict[int, dict[int, Floats]] = {}

    def _by_class(self, seconds: Floats) -> Floats:
        """The cheapest node of each class: [slope, class, start, end]."""
        p = self._p
        shape = (len(self.slopes), self._links.shape[1], self._size, self._size)
        found = np.full(shape, np.inf)
        kept = np.flatnonzero(np.isfinite(seconds).any(axis=1))
        for k, slope in enumerate(self.slopes.tolist()):
            costs = _weighed(self._prices, slope, seconds[kept])
            least = np.minimum.reduceat(costs, p.offsets, axis=1)
            found[k][:, p.start[kept], p.end[kept]] = least.T
        return found

    def _kind(self, place: int) -> int:
        return min(place, len(self._stage)) - 1

    def onward(self, place: int) -> Floats:
        """Least cost of what follows a stage at a place: [slope, boundary, class of the stage]."""
        while len(self._onward) < place:
            stage = self._stage[self._kind(len(self._onward))]
            after = self._onward[-1].transpose(0, 2, 1)
            suffix = (stage + after[:, :, None, :]).min(axis=3)  # [slope, class, boundary]
            self._onward.append((suffix[:, None] + self._links).min(axis=2).transpose(0, 2, 1))
        return self._onward[place - 1]

    def least(self, stages: int) -> Floats:
        """The least cost of a cluster of so many stages, per slope."""
        root = self._stage[self._kind(stages)][:, :, 0].transpose(0, 2, 1)  # [slope, end, class]
        found: Floats = (root + self.onward(stages)).min(axis=(1, 2))
        return found

    def ratio(self) -> float:
        """The largest rate over price of a cluster in the window, at most; pairs left out."""
        worst = 0.0
        for stages in range(FIRST, self._p.most_stages + 1):
            if self._p.is_possible(self.window, stages):
                worst = max(worst, self._ratio(stages, self.least(stages)))
        return worst

    def _ratio(self, stages: int, least: Floats) -> float:
        pace, window, slopes = self._p.pace, self.window, self.slopes
        shortest = float(self._p.least_loops(window)[stages])
        longest = max(self._p.longest_loop(window, stages), shortest)
        i, j = np.triu_indices(len(slopes), 1)
        crossings = np.clip((least[j] - least[i]) / (slopes[j] - slopes[i]), shortest, longest)
        loops = np.concatenate(([shortest, longest], crossings))
        price = (least[:, None] - slopes[:, None] * loops).max(axis=0)
        product = float((price * (pace.is_flushed * loops + window.low_s)).min())
        return pace.frequency / max(product, _TINY)

    def through(self, stages: int) -> Iterator[tuple[int, Floats, Ints, Ints]]:
        """By slope and node what the best cluster through the node is worth, and its place.

        The worth is that of the point in which the line could touch the curve of equal worth; the
        place is the position from the leaf, and the pair of boundaries.
        """
        if not self._p.is_possible(self.window, stages):
            return
        for k, least in enumerate(self.least(stages).tolist()):
            if k and self._touching(k, np.array(least)) > _PROMISING:
                costs, place, pair = self._through(k, stages)
                yield k, self._touching(k, costs), place, pair

    def _touching(self, k: int, least: Floats) -> Floats:
        pace, slope, excess = self._p.pace, float(self.slopes[k]), self.window.high_s
        if pace.is_flushed:
            half = (least + slope * excess) / 2
            return pace.frequency * slope / half**2
        price = np.maximum(least - slope * excess / max(pace.periods, 1), _TINY)
        found: Floats = pace.frequency / (price * excess)
        return found

    def _prefixes(self, stages: int) -> dict[int, Floats]:
        """Least cost of what comes before a place: [slope, boundary, class of the stage there]."""
        if stages not in self._before:
            first = np.full_like(self._onward[0], np.inf)
            first[:, 0] = 0.0
            found = {stages: first}
            for place in range(stages, 1, -1):
                before = found[place].transpose(0, 2, 1)[..., None]
                stage = (self._stage[self._kind(place)] + before).min(axis=2)
                linked = (stage[:, None] + self._links).min(axis=2)
                found[place - 1] = linked.transpose(0, 2, 1)
            self._before[stages] = found
        return self._before[stages]

    def _costs(self, k: int, place: int, pairs: Ints | int) -> Floats:
        """Of stages on every node, at one slope."""
        kind = self._kind(place)
        seconds = self._p.seconds[kind][pairs]
        keeps = self._p.excess[kind][pairs] <= self.window.high_s * (1 + 1e-9)
        found: Floats = self._prices + self.slopes[k] * np.where(keeps, seconds, np.inf)
        return found

    def _through(self, k: int, stages: int) -> tuple[Floats, Ints, Ints]:
        """By node: least cost of a cluster through it, its place from the leaf, and its pair."""
        p = self._p
        best = np.full(len(p.classes), np.inf)
        place_of, pair_of = np.zeros((2, len(best)), dtype=np.int64)
        for place in range(1, stages + 1):
            before, after = self._prefixes(stages)[place][k], self.onward(place)[k]
            around = before[p.start] + after[p.end]
            pairs = np.flatnonzero(np.isfinite(around).any(axis=1))
            if not len(pairs):
                continue
            whole = self._costs(k, place, pairs) + around[pairs][:, p.classes]
            index = whole.argmin(axis=0)
            least = whole[index, np.arange(len(best))]
            better = least < best
            best[better] = least[better]
            place_of[better], pair_of[better] = place, pairs[index[better]]
        return best, place_of, pair_of

    def traced(
        self, k: int, stages: int, node: int, place: int, pair: int, *, once: bool
    ) -> tuple[list[int], list[int]]:
        """The cluster through a node from root to leaf, and its boundaries.

        Args:
            k: index of the slope.
            once: take no node twice; the best there is only by chance then.
        """
        p, links = self._p, self._links[k]
        low, high = int(p.start[pair]), int(p.end[pair])
        chosen, cuts, taken = [node], [low, high], np.zeros(len(p.classes))
        taken[node] = np.inf if once else 0.0
        for position in range(place + 1, stages + 1):  # towards the root
            link = links[:, p.classes[chosen[0]], low]  # [class]
            around = self._prefixes(stages)[position][k]
            stage = self._stage[self._kind(position)][k][:, :, low].T
            before = int((around + stage + link).min(axis=1).argmin())
            options = self._costs(k, position, p.pair(before, low)) + taken
            chosen.insert(0, int((options + (link + around[before])[p.classes]).argmin()))
            taken[chosen[0]] = np.inf if once else 0.0
            low = before
            cuts.insert(0, low)
        for position in range(place - 1, 0, -1):  # towards the leaf
            link = links[p.classes[chosen[-1]], :, high]
            around = self.onward(position)[k]
            stage = self._stage[self._kind(position)][k][:, high].T
            after = int((around + stage + link).min(axis=1).argmin())
            options = self._costs(k, position, p.pair(high, after)) + taken
            chosen.append(int((options + (link + around[after])[p.classes]).argmin()))
            taken[chosen[-1]] = np.inf if once else 0.0
            high = after
            cuts.append(high)
        return chosen, cuts


def _weighed(prices: Floats, slope: float, seconds: Floats) -> Floats:
    """Price + slope * seconds, infinite where the seconds are, for a slope of 0 too."""
    if slope == 0.0:
        return np.where(np.isfinite(seconds), prices, np.inf)
    return prices + slope * seconds


def valid_ratio(pricing: Pricing, prices: Floats, windows: int) -> float:
    """By what prices must be multiplied so that no cluster is worth more than its nodes' prices.

    Args:
        windows: how many windows are looked at; more make the ratio smaller.
    """
    prices = prices[pricing.order]
    known = max(
        float((pricing.alone / prices).max()), float(_worth_of_pairs(pricing, prices).max())
    )
    if pricing.most_stages < FIRST:
        return known
    known = max(known, _beyond(pricing, prices))
    open_: list[tuple[float, float, float]] = []
    for window in pricing.windows(_WIDEST):
        heapq.heappush(open_, (-_ratio_in(pricing, prices, window), window.low_s, window.high_s))
    for _ in range(windows):
        worst, low, high = open_[0]
        if -worst <= known or high <= low * _NARROWEST:
            break
        middle = (low * high) ** 0.5 if low else high / 2
        heapq.heappop(open_)
        for ends in ((low, middle), (middle, high)):
            ratio = min(-worst, _ratio_in(pricing, prices, pricing.window(*ends)))
            heapq.heappush(open_, (-ratio, *ends))
    return max(known, -open_[0][0])


def _ratio_in(pricing: Pricing, prices: Floats, window: Window) -> float:
    stages = range(FIRST, pricing.most_stages + 1)
    if not any(pricing.is_possible(window, each) for each in stages):
        return 0.0
    return Paths(pricing, prices, window).ratio()


def _worth_of_pairs(pricing: Pricing, prices: Floats) -> Floats:
    """Rate over price, [root, leaf]."""
    found: Floats = pricing.pairs / (prices[:, None] + prices)
    return found


def _beyond(pricing: Pricing, prices: Floats) -> float:
    """The largest ratio of clusters of so large an E that no window has it."""
    cheapest = 3.0 * float(prices.min())
    highest = pricing.windows(_WIDEST)[-1].high_s
    return pricing.pace.frequency / (highest * max(cheapest, _TINY))
