"""Where a model may be cut, decided for both modes at once.

Every node of both graphs gets a level, a position of the train graph, and stage k of a cut model
holds the nodes whose level lies in its range. In the train graph the level is the node's own
position. In the eval graph it is the largest level among its inputs and its state, so that a node
comes after what it needs and beside the parameters it uses. Every rule then has the form "these
nodes must be on one side", which forbids an interval of cuts; the rules are those a split graph
needs to compute the same values, gradients and buffers:

* only tensors and plain numbers cross;
* a parameter, and a buffer that is written in either mode, is used on one stage only;
* memory that is written in place is created, written and read until its last write on one stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import fx

from ravnest.capture.graphs import (
    CapturedGraph,
    ValueKind,
    alias_groups,
    kind_of,
    written,
)
from ravnest.capture.state import StateInventory


@dataclass(frozen=True, slots=True)
class Placement:
    """Which position everything goes with.

    Attributes:
        train: level per node of the train graph; placeholders are at -1, the output at the last.
        eval: level per node of the eval graph.
        owners: position per stored tensor and constant that decides which stage owns it.
        shared: names that several stages may hold copies of, since nobody writes them.
        legal: every position before which the model may be cut, in order.
    """

    train: Mapping[fx.Node, int]
    eval: Mapping[fx.Node, int]
    owners: Mapping[str, int]
    shared: frozenset[str]
    legal: tuple[int, ...]


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
    mutable = {name for graph in groups for name in _written_names(groups[graph])}
    anchored = mutable | {name for name, each in state.stored.items() if each.is_parameter}

    owners = _first_uses(train, train_levels)
    eval_levels = _level_eval(evaluation, owners, last)
    _own_unused(owners, state)

    intervals: list[tuple[int, int]] = []
    for graph, levels in ((train, train_levels), (evaluation, eval_levels)):
        intervals += _torn_kinds(graph, levels)
        intervals += _torn_state(graph, levels, owners, anchored)
        intervals += _torn_memory(graph, levels, groups[graph])
    shared = frozenset(owners) - anchored
    return Placement(
        train_levels, eval_levels, owners, shared, tuple(_allowed(intervals, len(computing)))
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


def _first_uses(train: CapturedGraph, levels: Mapping[fx.Node, int]) -> dict[str, int]:
    """Position of the first use of every name that the train graph looks up."""
    owners: dict[str, int] = {}
    for node in train.graph.nodes:
        if node.op == "get_attr" and node.users:
            first = min(levels[user] for user in node.users)
            name = str(node.target)
            owners[name] = min(first, owners.get(name, first))
    return owners


def _level_eval(evaluation: CapturedGraph, owners: dict[str, int], last: int) -> dict[fx.Node, int]:
    """Levels of the eval graph; names that only it looks up are added to `owners`."""
    levels: dict[fx.Node, int] = {}
    free: set[fx.Node] = set()  # depends on neither input nor state: may be computed anywhere
    for node in evaluation.graph.nodes:
        if node.op == "output":
            levels[node] = last
        elif node.op == "placeholder":
            levels[node] = -1
        elif node.op == "call_function":
            inputs = node.all_input_nodes
            states = [each for each in inputs if each.op == "get_attr"]
            if all(each in free for each in inputs):
                free.add(node)
            known = [levels[each] for each in inputs if each.op != "get_attr"]
            known += [owners[str(each.target)] for each in states if each.target in owners]
            levels[node] = max(known, default=0) if node not in free else 0
            levels[node] = max(levels[node], 0)
            for each in states:
                owners.setdefault(str(each.target), levels[node])
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
    """All uses of a parameter or written buffer are on its owner's stage."""
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
