"""Whole clusters out of those that were found: disjoint, and of much rate together.

For some hundred nodes by an integer programme. For more by diving into the linear one: take the
clusters that it takes most of, and ask it again about the nodes that are left (Sadykov et al.
2019). By itself that loses a tenth, for a cluster that is taken in part is lost with the first of
its nodes that goes to another one. But in a large pool most nodes have their like, so it comes back
with free nodes that are like those it lost. And clusters that lost none come with one node replaced
by its like of the lowest price as well, which the programme would ask for next.

HiGHS solves the programmes (scipy), limited by nodes of its tree and never by time: the same pool
gives the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy import optimize

from ravnest.planning.inputs.table import Floats, Ints
from ravnest.planning.pools.alike import nearest
from ravnest.planning.pools.columns import Columns

_MOST_INTEGER = 200  # nodes up to which whole clusters come from an integer programme
_GAP = 1e-3
_TREE = 50

_LIKE = 12  # nodes that may take another one's place
_GAIN = 1e-3  # of a round, for another one to follow
_TAKEN = 0.5  # share of a cluster from which it is taken at once with others
_STAGES = 4  # of a cluster, about
_CHEAPEST = 3  # nodes that are tried in the place of one
_REPAIRED = 2  # clusters that take the place of one that lost nodes
_SUPPORT = 1e-6


@dataclass(frozen=True, slots=True)
class DiveEffort:
    """How long a dive takes.

    Attributes:
        worth: rate over price from which clusters are thought of again.
        improved: rounds at most in which clusters are added before any is taken.
        again: the same whenever some were taken.
        part: of the free nodes that a round takes about; prices follow after each.
    """

    worth: float
    improved: int
    again: int
    part: float


SHORT_DIVE = DiveEffort(worth=0.97, improved=3, again=1, part=0.3)
LONG_DIVE = DiveEffort(worth=0.9, improved=12, again=3, part=0.15)

_Key: TypeAlias = tuple[int, ...]
_Order: TypeAlias = tuple[int, ...]


def whole_clusters(columns: Columns, effort: DiveEffort) -> list[_Order]:
    """Disjoint clusters of much rate, from root to leaf; takes further ones into the columns."""
    if not columns.found:
        return []
    if len(columns.traits) <= _MOST_INTEGER:
        chosen = _integer(columns)
        if chosen is not None:
            return chosen
    return _Dive(columns, effort).run()


def _integer(columns: Columns) -> list[_Order] | None:
    """By an integer programme; None where its tree has too many nodes for any answer."""
    keys = sorted(columns.found)
    result = optimize.milp(
        -columns.rates(keys),
        constraints=optimize.LinearConstraint(columns.matrix(keys), -np.inf, 1.0),
        integrality=np.ones(len(keys)),
        bounds=optimize.Bounds(0, 1),
        options={"mip_rel_gap": _GAP, "node_limit": _TREE},
    )
    if result.x is None:
        return None
    chosen = [key for key, share in zip(keys, result.x, strict=True) if share > 0.5]
    return [columns.found[key][0] for key in chosen]


@dataclass(frozen=True, slots=True)
class _Relaxation:
    """What the linear programme says: how much of each cluster, and prices of the nodes."""

    keys: list[_Key]
    shares: Floats
    prices: Floats

    def ranked(self) -> Iterator[tuple[_Key, float]]:
        """Clusters that it takes of, most of all first."""
        shares = self.shares.tolist()
        order = sorted(range(len(shares)), key=lambda index: (-shares[index], self.keys[index]))
        for index in order:
            if shares[index] <= _SUPPORT:
                break
            yield self.keys[index], shares[index]


class _Dive:
    """One dive."""

    def __init__(self, columns: Columns, effort: DiveEffort) -> None:
        self._columns, self._effort, traits = columns, effort, columns.traits
        self._prices: list[float] = [0.0] * len(traits)  # at the last look
        self._like: Ints = nearest(traits, np.arange(len(traits)), 1 + _LIKE)[0]
        self._free: set[int] = set(range(len(traits)))

    def run(self) -> list[_Order]:
        """Rounds of taking clusters and repairing the others, until none is left."""
        chosen: list[_Order] = []
        seen = self._improved(self._effort.improved)
        while seen is not None:
            chosen += self._take(seen)
            self._add(self._repaired(seen))
            self._add(self._neighbours(seen))
            seen = self._improved(self._effort.again)
        return chosen

    def _improved(self, rounds: int) -> _Relaxation | None:
        """Adds clusters as long as the linear programme gains by them; None where there is none."""
        known = 0.0
        seen: _Relaxation | None = None
        for _ in range(rounds):
            keys = sorted(key for key in self._columns.found if self._free.issuperset(key))
            if not keys:
                return None
            # Those of far less than their price hardly ever come back, and are most of all.
            seen = self._relaxation([key for key in keys if self._is_worthy(key)] or keys)
            self._prices = seen.prices.tolist()
            rate = float(self._columns.rates(seen.keys) @ seen.shares)
            if rate < (1 + _GAIN) * known:
                break
            known = rate
            self._add(self._neighbours(seen))
        return seen

    def _is_worthy(self, key: _Key) -> bool:
        price = sum(self._prices[node] for node in key)
        return self._columns.found[key][1] >= self._effort.worth * price

    def _relaxation(self, keys: list[_Key]) -> _Relaxation:
        result = optimize.linprog(
            -self._columns.rates(keys),
            A_ub=self._columns.matrix(keys),
            b_ub=np.ones(len(self._columns.traits)),
            bounds=(0, None),
            method="highs",
        )
        return _Relaxation(keys, np.asarray(result.x), -np.asarray(result.ineqlin.marginals))

    def _take(self, seen: _Relaxation) -> list[_Order]:
        """Takes what is taken nearly whole, not too many; at least one."""
        taken: list[_Order] = []
        most = 1 + int(self._effort.part * len(self._free) / _STAGES)
        for key, share in seen.ranked():
            if taken and (share < _TAKEN or (len(taken) >= most and share < 1 - _SUPPORT)):
                break
            if self._free.issuperset(key):
                taken.append(self._columns.found[key][0])
                self._free.difference_update(key)
        return taken

    def _repaired(self, seen: _Relaxation) -> Iterator[_Order]:
        """Clusters that lost nodes, with the nearest free ones that are like those."""
        for key, _ in seen.ranked():
            if not self._free.issuperset(key):
                order = self._columns.found[key][0]
                for which in range(_REPAIRED):
                    yield from self._with_free(order, which)

    def _with_free(self, order: _Order, which: int) -> Iterator[_Order]:
        """An order with free nodes in the place of others, each one of the nearest, if there are.

        Args:
            which: of them, by how near they are.
        """
        kept = {node for node in order if node in self._free}
        found: list[int] = []
        for node in order:
            if node in self._free:
                found.append(node)
                continue
            others = [each for each in self._free_like(node) if each not in kept]
            if which >= len(others):
                return
            found.append(others[which])
            kept.add(others[which])
        yield tuple(found)

    def _neighbours(self, seen: _Relaxation) -> Iterator[_Order]:
        """Clusters that are taken of, with a node replaced by one like it, or without it."""
        worth = (seen.prices / self._columns.traits.flops).tolist()
        for key, _ in seen.ranked():
            if not self._free.issuperset(key):
                continue
            order = self._columns.found[key][0]
            for place, node in enumerate(order):
                before, after = order[:place], order[place + 1 :]
                if len(order) > 1:
                    yield (*before, *after)
                others = [each for each in self._free_like(node) if each not in order]
                others.sort(key=lambda each: (worth[each], each))
                for other in others[:_CHEAPEST]:
                    yield (*before, other, *after)

    def _free_like(self, node: int) -> list[int]:
        return [each for each in self._like[node].tolist() if each in self._free]

    def _add(self, orders: Iterable[_Order]) -> None:
        """Takes in clusters of nodes that none that is known has."""
        new: dict[_Key, _Order] = {}
        for order in orders:
            key = tuple(sorted(order))
            if key not in self._columns.found:
                new.setdefault(key, order)
        self._columns.add(new.values())
