"""Where a model may be cut, decided for both modes at once.

Every node of both graphs gets a level, a position of the train graph, and stage k of a cut model
holds the nodes whose level lies in its range. In the train graph the level is the node's own
position. In the eval graph it is the largest level among its inputs and its state, so that a node
comes after what it needs and beside the parameters it uses. Every rule then has the form "these
nodes must be on one side", which forbids an interval of cuts; the rules are those a split graph
needs to compute the same values, gradients and buffers:

* only tensors and plain numbers cross, and of tensors none that `recomputing` says are recomputed;
* a parameter or buffer that is written in either mode is used on one stage only;
* memory that is written in place is created, written and read until its last write on one stage.

What nobody writes may be used on several stages. Its owner is the stage that uses it first in the
train graph; no use in the eval graph comes before that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from ravnest.capture.graphs import (
    CapturedGraph,
    ValueKind,
    alias_groups,
    kind_of,
    written,
)
from ravnest.capture.recomputing import choose_recomputed, needed_inputs
from ravnest.capture.state import StateInventory


@dataclass(frozen=True, slots=True)
class Placement:
    """Which position everything goes with.

    Attributes:
        train: level per node of the train graph; placeholders are at -1, the output at the last.
        eval: level per node of the eval graph.
        owners: position per stored tensor and constant that decides which stage owns it.
        uses: every position, of either mode, that a name is used at, ascending from its owner's.
        shared: names that several stages may hold copies of, since nobody writes them.
        legal: every position before which the model may be cut, in order.
        recomputed: values, of both modes, that stages compute for themselves instead of receiving.
    """

    train: Mapping[fx.Node, int]
    eval: Mapping[fx.Node, int]
    owners: Mapping[str, int]
    uses: Mapping[str, tuple[int, ...]]
    shared: frozenset[str]
    legal: tuple[int, ...]
    recomputed: frozenset[fx.Node]


def place(train: CapturedGraph, evaluation: CapturedGraph, state: StateInventory) -> Placement:
    """Assigns positions to nodes and state, and finds the legal cuts.

    Args:
        train: graph whose computing nodes are counted.
        evaluation: graph that is cut along with it.
        state: the names both look up.
    """
    computing = train.computing
    last = max(len(computing) - 1, 0)
    train_levels = {node: i for i, node in enumerate(computing)}
    for node in train.graph.nodes:
        if node.op != "call_function":
            train_levels[node] = last if node.op == "output" else -1
    groups = {graph: alias_groups(graph.graph) for graph in (train, evaluation)}
    anchored = {name for graph in groups for name in _written_names(groups[graph])}

    uses = _uses(train, train_levels)
    owners = {name: min(positions) for name, positions in uses.items()}
    eval_levels = _level_eval(evaluation, owners, uses, last)
    for name, positions in _uses(evaluation, eval_levels).items():
        uses[name] = [*uses.get(name, ()), *positions]
    _own_unused(owners, state)

    intervals: list[tuple[int, int]] = []
    for graph, levels in ((train, train_levels), (evaluation, eval_levels)):
        intervals += _torn_kinds(graph, levels)
        intervals += _torn_state(graph, levels, owners, anchored)
        intervals += _torn_memory(graph, levels, groups[graph])
    legal = tuple(_allowed(intervals, len(computing)))
    recomputed: set[fx.Node] = set()
    for graph, levels in ((train, train_levels), (evaluation, eval_levels)):
        chosen = choose_recomputed(graph.graph, levels, legal, state)
        for name, positions in _uses_by_recomputing(graph, levels, chosen).items():
            uses[name] = [*uses.get(name, ()), *positions]
        recomputed |= chosen
    shared = frozenset(owners) - anchored
    return Placement(
        train=train_levels,
        eval=eval_levels,
        owners=owners,
        uses={name: tuple(sorted({owners[name], *uses.get(name, ())})) for name in owners},
        shared=shared,
        legal=legal,
        recomputed=frozenset(recomputed),
    )


def _allowed(intervals: Iterable[tuple[int, int]], num_positions: int) -> Iterator[int]:
    """Positions in no half-open interval (low, high]."""
    change = [0] * (num_positions + 1)
    for low, high in intervals:
        if low < high:
            change[max(low + 1, 0)] += 1
            change[min(high + 1, num_positions)] -= 1
    depth = change[0] if change else 0
    for position in range(1, num_positions):
        depth += change[position]
        if depth == 0:
            yield position


def _span(levels: Iterable[int]) -> tuple[int, int]:
    found = list(levels)
    return (min(found), max(found)) if found else (0, 0)


def _written_names(groups: Iterable[list[fx.Node]]) -> Iterator[str]:
    """Stored names whose memory some node writes."""
    for group in groups:
        members = set(group)
        if any(target in members for node in group for u in node.users for target in written(u)):
            yield from (str(node.target) for node in group if node.op == "get_attr")


def _uses(graph: CapturedGraph, levels: Mapping[fx.Node, int]) -> dict[str, list[int]]:
    """Levels of the nodes that use a name, in order of the graph, per name it looks up."""
    uses: dict[str, list[int]] = {}
    for node in graph.graph.nodes:
        for name in _state_names(node):
            uses.setdefault(name, []).append(levels[node])
    return uses


def _uses_by_recomputing(
    graph: CapturedGraph, levels: Mapping[fx.Node, int], recomputed: frozenset[fx.Node]
) -> dict[str, list[int]]:
    """Levels at which a name is looked up because something is recomputed there."""
    uses: dict[str, list[int]] = {}
    for node in graph.graph.nodes:
        if node not in recomputed:
            for each in set(needed_inputs(node, recomputed)) - set(node.all_input_nodes):
                if each.op == "get_attr":
                    uses.setdefault(str(each.target), []).append(levels[node])
    return uses


def _state_names(node: fx.Node) -> list[str]:
    """The names among a node's inputs, each once."""
    names = (str(each.target) for each in node.all_input_nodes if each.op == "get_attr")
    return list(dict.fromkeys(names))


class _Counterparts:
    """Finds the use in the train graph that a use in the eval graph goes with.

    Where both graphs use a name equally often, the k-th goes with the k-th. Otherwise a use goes
    with the first one that comes no earlier than its inputs, and with none where there is none.
    """

    def __init__(self, train: Mapping[str, Sequence[int]], evaluation: CapturedGraph) -> None:
        self._train = train
        nodes = evaluation.graph.nodes
        self._total = Counter(name for node in nodes for name in _state_names(node))
        self._seen: Counter[str] = Counter()

    def find(self, name: str, level: int) -> int | None:
        """The level of the next use of `name` by a node whose inputs are at `level`."""
        positions = self._train.get(name, ())
        index = self._seen[name]
        self._seen[name] += 1
        if len(positions) == self._total[name]:
            return positions[index]
        return min((each for each in positions if each >= level), default=None)


def _level_eval(
    evaluation: CapturedGraph,
    owners: dict[str, int],
    uses: Mapping[str, Sequence[int]],
    last: int,
) -> dict[fx.Node, int]:
    """Levels of the eval graph; names that only it looks up are added to `owners`."""
    counterparts = _Counterparts(uses, evaluation)
    levels: dict[fx.Node, int] = {}
    free: set[fx.Node] = set()  # depends on neither input nor state: may be computed anywhere
    for node in evaluation.graph.nodes:
        if node.op == "output":
            levels[node] = last
        elif node.op == "placeholder":
            levels[node] = -1
        elif node.op == "call_function":
            inputs, names = node.all_input_nodes, _state_names(node)
            if all(each in free for each in inputs):
                free.add(node)
            level = max((levels[each] for each in inputs if each in levels), default=0)
            found = [counterparts.find(name, level) for name in names]
            found += [owners[name] for name in names if name in owners]
            levels[node] = max(0, level, *(each for each in found if each is not None))
            for name in names:
                owners.setdefault(name, levels[node])
    for node in reversed(evaluation.graph.nodes):
        if node in free:
            levels[node] = min((levels[user] for user in node.users), default=0)
        elif node.op == "get_attr":
            levels[node] = owners.setdefault(str(node.target), last)
    return levels


def _own_unused(owners: dict[str, int], state: StateInventory) -> None:
    """Puts state that neither graph uses beside the nearest module that is used."""
    nearest: dict[str, int] = {}
    for name, position in sorted(owners.items(), key=lambda item: item[1]):
        for prefix in _modules(name):
            nearest.setdefault(prefix, position)
    for name in state.stored:
        if name not in owners:
            owners[name] = next((nearest[p] for p in _modules(name) if p in nearest), 0)


def _modules(name: str) -> Iterator[str]:
    """The modules a name lies in, innermost first, the root ("") last."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _torn_kinds(graph: CapturedGraph, levels: Mapping[fx.Node, int]) -> Iterator[tuple[int, int]]:
    """What can neither be sent as a tensor nor as a number stays with its users."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.users and kind_of(node) is ValueKind.OTHER:
            yield _span([levels[node], *(levels[user] for user in node.users)])


def _torn_state(
    graph: CapturedGraph,
    levels: Mapping[fx.Node, int],
    owners: Mapping[str, int],
    anchored: set[str],
) -> Iterator[tuple[int, int]]:
    """All uses of what is written are on its owner's stage."""
    uses: dict[str, list[int]] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr" and node.target in anchored:
            found = uses.setdefault(str(node.target), [owners[str(node.target)]])
            found.extend(levels[user] for user in node.users)
    yield from map(_span, uses.values())


def _torn_memory(
    graph: CapturedGraph, levels: Mapping[fx.Node, int], groups: Iterable[list[fx.Node]]
) -> Iterator[tuple[int, int]]:
    """Memory that is written in place stays whole until its last write; state for good."""
    order = {node: i for i, node in enumerate(graph.graph.nodes)}
    for group in groups:
        members = set(group)
        users = {user for node in group for user in node.users}
        writes = [order[user] for user in users if members.intersection(written(user))]
        if not writes:
            continue
        is_state = any(node.op == "get_attr" for node in group)
        until = len(order) if is_state else max(writes)
        creators = {node for node in group if node.op != "get_attr"}
        yield _span(levels[node] for node in users | creators if order[node] <= until)
