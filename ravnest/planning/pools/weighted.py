"""The cheapest pipelines by price and weighted seconds, in a window of the longest period.

A path goes from the leaf to the root and takes on each stage the node that is best for it. What it
costs is the price of its nodes and, for the stage k places from the leaf, a weight of k times its
seconds, the link towards the leaf included; and another weight times what its node needs per step.
The delay of a node counts with the weight of the stage that its link belongs to. Weights are powers
of a step, so that tables of the cheapest nodes serve often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.terrain import Terrain

STEP = 1.2
"""Between one weight and the next."""

Singles: TypeAlias = NDArray[np.float32]
_NONE = np.float32(np.inf)

NO_WEIGHT = -1


@dataclass(frozen=True, slots=True)
class Weights:
    """Indices of weights by place from the leaf.

    Attributes:
        of_seconds: of each stage, and of one more before the root.
        of_update: of what its node needs per step; `NO_WEIGHT` for none.
    """

    of_seconds: tuple[int, ...]
    of_update: tuple[int, ...]

    def at(self, place: int) -> tuple[int, int, int]:
        """Those of a stage, of the stage before it, and of what its node needs per step."""
        return self.of_seconds[place - 1], self.of_seconds[place], self.of_update[place - 1]


_Three: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Path:
    """A pipeline that may take a node twice.

    Attributes:
        nodes: from root to leaf, as the caller numbers them.
        seconds: by place from the leaf, each with the link towards the leaf.
        update: by place from the leaf, over periods.
    """

    nodes: tuple[int, ...]
    seconds: Floats
    update: Floats


@dataclass(frozen=True, slots=True)
class _Stages:
    """Of a kind, those that keep to the window: [node, shape]; where levels begin."""

    seconds: Singles
    ahead: Singles
    update: Singles
    price: Singles
    nodes: Ints
    shapes: Ints
    edges: list[int]
    levels: Ints

    def costs(self, weights: Sequence[float], shapes: slice) -> Singles:
        """By the weights of seconds, of the link ahead, and of the update."""
        found: Singles = self.seconds[:, shapes] * np.float32(weights[0])
        found += self.price[:, None]
        found += self.ahead[:, shapes] * np.float32(weights[1])
        if weights[2]:
            found += self.update[:, shapes] * np.float32(weights[2])
        return found


class WeightedPaths:
    """Paths of stages with an E of no more than a limit.

    Args:
        prices: of the nodes.
        least: the weight of index 0.
    """

    def __init__(self, terrain: Terrain, prices: Floats, limit_s: float, least: float) -> None:
        self._terrain, self._limit_s, self._least = terrain, limit_s, least
        self._price: Singles = prices[terrain.order].astype(np.float32)
        self._links: Singles = terrain.links.astype(np.float32)
        self._of_kind: dict[int, _Stages] = {}
        self._tables: dict[tuple[int, _Three], Singles] = {}
        self.none: Singles = np.full(self._links.shape, _NONE)

    def weight(self, index: int) -> float:
        """Of an index."""
        return 0.0 if index == NO_WEIGHT else self._least * STEP**index

    def index(self, weight: float, *, up: bool) -> int:
        """Of the next weight that is no less, or no more."""
        if weight < self._least:
            return 0 if up else NO_WEIGHT
        exact = np.log(weight / self._least) / np.log(STEP)
        return int(np.ceil(exact - 1e-9)) if up else int(np.floor(exact + 1e-9))

    def longer(self, before: Singles, place: int, weights: _Three) -> Singles:
        """Least costs with one stage more: [boundary, level of the link before it].

        Args:
            before: those of one stage less; of no interest for a leaf.
            place: of the new stage.
            weights: indices of its weights, see `Weights.at`.
        """
        table = self._table(place, weights)
        if place == 1:
            leaf: Singles = table[-1]
            return leaf
        linked = before[1:-1] + np.float32(self.weight(weights[0])) * self._links[1:-1]
        ends = np.flatnonzero(np.isfinite(linked).any(axis=1))
        if not len(ends):
            return self.none
        linked, table = linked[ends], table[1 + ends]
        # The node's rate is no less than that of either link.
        before_it = (table + np.minimum.accumulate(linked, axis=1)[:, None]).min(axis=0)
        behind_it = (table + linked[:, None]).min(axis=0)
        behind_it = np.minimum.accumulate(behind_it[:, ::-1], axis=1)[:, ::-1]
        found: Singles = np.minimum(before_it, behind_it)
        return found

    def solved(self, weights: Weights) -> list[Singles]:
        """Least costs by place from the leaf."""
        found: list[Singles] = []
        for place in range(1, len(weights.of_update) + 1):
            before = found[-1] if found else self.none
            found.append(self.longer(before, place, weights.at(place)))
        return found

    def traced(self, solved: list[Singles], weights: Weights) -> Path:
        """The cheapest pipeline of all places."""
        number = len(solved)
        start, level = 0, 0
        nodes, seconds, update = [], np.zeros(number + 1), np.zeros(number)
        for place in range(number, 0, -1):
            at = weights.at(place)
            end, of_node, behind = self._behind(solved, place, at, (start, level))
            stages = self._stages(self._terrain.kind(place))
            shape = int(np.searchsorted(stages.shapes, self._terrain.shape_at[end, start]))
            costs = stages.costs([self.weight(each) for each in at], slice(shape, shape + 1))
            first = stages.edges[int(np.searchsorted(stages.levels, of_node))]
            node = first + int(costs[first:, 0].argmin())
            nodes.append(int(self._terrain.order[stages.nodes[node]]))
            seconds[place - 1] += stages.seconds[node, shape]
            seconds[place] += stages.ahead[node, shape]
            update[place - 1] = stages.update[node, shape]
            if place > 1:
                seconds[place - 1] += self._links[end, behind]
            start, level = end, behind
        return Path(tuple(nodes), seconds[:-1], update)

    def _behind(
        self, solved: list[Singles], place: int, weights: _Three, at: tuple[int, int]
    ) -> tuple[int, int, int]:
        """Where the cheapest stage at a place ends, the level of its node, and of the link there.

        Args:
            at: where it starts, and the level of the link before it.
        """
        start, level = at
        if place == 1:
            return len(self._links) - 1, level, 0
        linked = solved[place - 2][1:-1] + np.float32(self.weight(weights[0])) * self._links[1:-1]
        levels = np.maximum(level, np.arange(linked.shape[1]))
        whole = self._table(place, weights)[1:-1, start][:, levels] + linked
        end, behind = (int(each) for each in np.unravel_index(whole.argmin(), whole.shape))
        return 1 + end, int(levels[behind]), behind

    def _stages(self, kind: int) -> _Stages:
        if kind not in self._of_kind:
            keeps = self._terrain.keeps(kind, self._limit_s)
            seconds, ahead, update = self._terrain.seconds(kind)
            nodes, shapes = np.flatnonzero(keeps.any(axis=1)), np.flatnonzero(keeps.any(axis=0))
            both = np.ix_(nodes, shapes)
            level = self._terrain.level_of[nodes]
            first = np.flatnonzero(np.diff(level, prepend=-1))
            self._of_kind[kind] = _Stages(
                np.where(keeps[both], seconds[both], np.inf).astype(np.float32),
                ahead[both].astype(np.float32),
                update[both].astype(np.float32),
                self._price[nodes],
                nodes,
                shapes,
                [*first.tolist(), len(nodes)],
                level[first],
            )
        return self._of_kind[kind]

    def _table(self, place: int, weights: _Three) -> Singles:
        """The cheapest stages by a node of at least a level: [end, start, level]."""
        key = self._terrain.kind(place), weights
        if key not in self._tables:
            stages, terrain = self._stages(key[0]), self._terrain
            num_shapes = int(terrain.shape_at.max()) + 1
            found = np.full((terrain.num_levels, num_shapes), _NONE)
            costs = stages.costs([self.weight(each) for each in weights], slice(None))
            for at, level in enumerate(stages.levels.tolist()):
                part = costs[stages.edges[at] : stages.edges[at + 1]]
                found[level, stages.shapes] = part.min(axis=0)
            found = np.minimum.accumulate(found[::-1], axis=0)[::-1].T
            self._tables[key] = np.ascontiguousarray(found)[terrain.shape_at]
        return self._tables[key]
