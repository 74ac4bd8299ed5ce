"""Few nodes: the best clusters there are, proven by exhausting all subsets.

Every subset gets a lower bound of its step time, subsets are grouped by these, and the clusters
that were chosen get their true times; when all chosen times are true the grouping is the best,
for nothing else can be better than its bound (delayed exactness, as in Benders' decomposition).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ravnest.plan.parts import NodeSpec
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import CostTable, Floats
from ravnest.planning.search.grouping import Groupings
from ravnest.planning.search.ordering import SEARCH_BOUNDARIES, Cluster, ClusterSearch, NodeClasses
from ravnest.planning.search.pace import Pace
from ravnest.planning.search.subsets import Arrangement, Subsets, best_arrangement, lower_bounds

MOST_STATES = 12 * 2**12
_NEAR_BOUND = 1.0 + 1e-9
_TIED = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Division:
    """Some nodes divided into clusters.

    Attributes:
        rate: microbatches per second of all clusters.
        left_out: nodes in no cluster.
        is_proven: no division into so many clusters has a higher rate, along the boundaries that
            were looked at.
        averaged_as: clusters that averaging was charged for.
    """

    clusters: tuple[Cluster, ...]
    left_out: tuple[NodeSpec, ...]
    is_proven: bool = False
    averaged_as: int = 1

    @property
    def rate(self) -> float:
        """Microbatches per second of all clusters together."""
        return sum(cluster.rate for cluster in self.clusters)

    @property
    def spread(self) -> float:
        """How many times the fastest cluster is as fast as the slowest."""
        rates = [cluster.rate for cluster in self.clusters]
        return max(rates) / min(rates)


class ExactSearch:
    """The best division of nodes that are few, or of few kinds.

    Args:
        near: divisions within this share of the best are of interest as well.
    """

    def __init__(
        self, table: CostTable, settings: PlanningSettings, nodes: Sequence[NodeSpec], near: float
    ) -> None:
        self._table, self._settings, self._near = table, settings, near
        self._nodes = sorted(nodes, key=lambda node: node.node_id)
        self._classes = NodeClasses(nodes)
        self._subsets = Subsets(self._classes.counts)

    def divisions(self) -> list[Division]:
        """The best division into each number of clusters that comes near the best of all.

        One that uses more clusters than two is looked for only if it can come near: averaging takes
        the longer the more clusters there are, so two clusters' share of it bounds the others.
        """
        found = [each for each in [self._of_number(self._rates(1), 1)] if each is not None]
        if len(self._nodes) == 1:
            return found
        bounds = Groupings(self._subsets, self._rates(2).worth, len(self._nodes)).values.max(axis=1)
        for number in sorted(range(2, len(bounds)), key=lambda each: -bounds[each]):
            best = max((each.rate for each in found), default=0.0)
            if bounds[number] < self._near * best or not np.isfinite(bounds[number]):
                break
            division = self._of_number(self._rates(number), number)
            if division is not None:
                found.append(division)
        return found

    def of_all(self, number: int) -> Division | None:
        """The division into so many clusters that uses the most nodes, the slowest at its best.

        Equally fast slowest clusters are told apart by the rate of all. Rates of subsets that a
        bound does not tell exactly are the bound's; the clusters themselves are exact.
        """
        rates = self._rates(number)
        slowest = Groupings(self._subsets, rates.worth, number, np.minimum).values[number]
        if not np.isfinite(slowest).any():
            return None
        most = self._subsets.totals[np.isfinite(slowest)].max()
        candidates = np.where(self._subsets.totals == most, slowest, -np.inf)
        subset = int(candidates.argmax())
        worth = np.where(rates.worth >= slowest[subset] * _TIED, rates.worth, -np.inf)
        clusters = Groupings(self._subsets, worth, number).clusters(number, subset)
        return self._division(rates, clusters)

    def _rates(self, number: int) -> _Rates:
        return _Rates(self._table, self._settings, self._classes, self._subsets, number)

    def _of_number(self, rates: _Rates, number: int) -> Division | None:
        while True:
            groupings = Groupings(self._subsets, rates.worth, number)
            values = groupings.values[number]
            subset = int(values.argmax())
            if not np.isfinite(values[subset]):
                return None
            clusters = groupings.clusters(number, subset)
            changed = [rates.made_exact(each) for each in clusters]  # all of them, not until one
            if not any(changed):
                return self._division(rates, clusters)

    def _division(self, rates: _Rates, clusters: Sequence[int]) -> Division:
        arrangements = [rates.arrangement(each) for each in clusters]
        arrangements.sort(key=lambda each: -len(each.order))  # so that node 0 is in a longest one
        dealt = self._classes.dealt_out([each.order for each in arrangements])
        search = ClusterSearch(self._table, self._settings, rates.number)
        made = sorted(
            (search.cluster(nodes, each) for nodes, each in zip(dealt, arrangements, strict=True)),
            key=lambda cluster: min(node.node_id for node in cluster.nodes),
        )
        used = {node.node_id for nodes in dealt for node in nodes}
        left_out = tuple(node for node in self._nodes if node.node_id not in used)
        is_proven = all(each.is_best for each in arrangements)
        return Division(tuple(made), left_out, is_proven, rates.number)


class _Rates:
    """Microbatches per second of every subset: an upper bound first, the truth when asked."""

    def __init__(
        self,
        table: CostTable,
        settings: PlanningSettings,
        classes: NodeClasses,
        subsets: Subsets,
        number: int,
    ) -> None:
        memory = MemoryModel(table, settings, is_averaged=number > 1).thinned(SEARCH_BOUNDARIES)
        self.number = number
        self._pace = Pace(memory, number)
        self._classes, self._subsets = classes, subsets
        self._exact: dict[int, Arrangement] = {}
        times = lower_bounds(self._pace, classes.traits, subsets)
        rates = self._pace.microbatch_rate(times)
        self.worth: Floats = np.where(np.isfinite(times), rates, -np.inf)

    def arrangement(self, subset: int) -> Arrangement:
        """The best order and cuts of a subset that fits."""
        if subset not in self._exact:
            counts = self._subsets.digits[subset].tolist()
            bound_s = self._pace.frequency / float(self.worth[subset])
            found = best_arrangement(self._pace, self._classes.traits, counts, bound_s)
            assert found is not None, "what has a finite bound fits"
            self._exact[subset] = found
        return self._exact[subset]

    def made_exact(self, subset: int) -> bool:
        """Replaces a bound by the truth; whether they differ."""
        if subset in self._exact:
            return False
        rate = float(self._pace.microbatch_rate(np.array(self.arrangement(subset).step_s)))
        changes = rate * _NEAR_BOUND < float(self.worth[subset])
        self.worth[subset] = rate
        return changes
