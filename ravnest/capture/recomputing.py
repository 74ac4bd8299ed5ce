"""Values that every stage that needs them computes for itself: masks, positions, rotary tables.

A causal mask grows with the square of the sequence, the sizes and the padding mask that it follows
from do not. Such a value is never sent; what it follows from is, as far as some later stage needs
it. A value is chosen when that makes no legal cut wider and at least one narrower, for the sizes
of the example.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import fx

from ravnest.capture.graphs import (
    ValueKind,
    alias_groups,
    has_effect,
    is_random,
    kind_of,
    written,
)
from ravnest.capture.state import StateInventory

_aten = torch.ops.aten

_MAX_BYTES_PER_BYTE = 64
"""Bytes that computing a value may read and write per byte that is then not sent. Memory is about
a thousand times as fast as a home link, and ten times as fast as a data centre's."""

_HEADER_BYTES = 64
"""What a tensor takes on the wire besides its values: name, shape, checksum."""

_MAX_TERMS = 4
"""A product of matrices with longer inner sums is real work. Rotary tables are outer products."""

_PRODUCTS = frozenset({_aten.matmul, _aten.bmm, _aten.mm})
_CHEAP = frozenset(
    {
        *(_aten.arange, _aten.full, _aten.zeros, _aten.ones, _aten.scalar_tensor, _aten.full_like),
        *(_aten.zeros_like, _aten.ones_like, _aten.new_full, _aten.new_zeros, _aten.new_ones),
        *(_aten.tril, _aten.triu, _aten.cumsum, _aten.any, _aten.all, _aten.sum, _aten.max),
        *(_aten.cat, _aten.stack, _aten.repeat, _aten.clone, _aten._to_copy, _aten.to),
        *(_aten.type_as, _aten.contiguous, _aten.reshape, _aten.index, _aten.gather),
        *(_aten.index_select, _aten.masked_fill, _aten.roll, _aten.flip, _aten.one_hot),
        *(_aten.where, _aten.__and__, _aten.__or__, _aten.__xor__),  # not all are tagged pointwise
        *(_aten.constant_pad_nd, _aten.pad, _aten.outer, _aten.diff),
    }
)


def needed_inputs(node: fx.Node, recomputed: Collection[fx.Node]) -> Iterator[fx.Node]:
    """What must be at hand where `node` runs, after what is recomputed there; may repeat."""
    for each in node.all_input_nodes:
        if each in recomputed:
            yield from needed_inputs(each, recomputed)
        else:
            yield each


def recomputed_for(node: fx.Node, recomputed: Collection[fx.Node]) -> Iterator[fx.Node]:
    """What is recomputed where `node` runs; may repeat."""
    for each in node.all_input_nodes:
        if each in recomputed:
            yield each
            yield from recomputed_for(each, recomputed)


def last_uses(
    graph: fx.Graph, levels: Mapping[fx.Node, int], recomputed: Collection[fx.Node]
) -> dict[fx.Node, int]:
    """The highest level that each value must reach; -1 for one that nobody uses, or is not sent."""
    last = dict.fromkeys(graph.nodes, -1)
    for node in graph.nodes:
        if node not in recomputed:
            for each in needed_inputs(node, recomputed):
                last[each] = max(last[each], levels[node])
    return last


def choose_recomputed(
    graph: fx.Graph, levels: Mapping[fx.Node, int], legal: Sequence[int], state: StateInventory
) -> frozenset[fx.Node]:
    """The values of one mode that are recomputed instead of sent.

    Args:
        graph: nodes with the fake values they were traced with.
        levels: position per node, see `cuts`.
        legal: positions the graph may be cut before.
        state: tells constants from parameters.
    """
    sizes = {node: _num_bytes(node.meta.get("val")) for node in graph.nodes}
    chains = _cheap_chains(graph, state, sizes)
    crossing = sorted(
        (node for node in chains if any(user not in chains for user in node.users)),
        key=lambda node: -(sizes[node] or 0),
    )
    chosen: set[fx.Node] = set()
    widths = _widths(graph, levels, legal, sizes, chosen)
    for node in crossing:
        chain = chains[node]
        work = [_work(each, sizes) for each in chain]
        limit = _MAX_BYTES_PER_BYTE * (sizes[node] or 0)
        if node in chosen or None in work or sum(filter(None, work)) > limit:
            continue
        extended = chosen | chain
        wider = _widths(graph, levels, legal, sizes, extended)
        differences = [new - old for new, old in zip(wider, widths, strict=True)]
        if differences and max(differences) <= 0 > min(differences):
            chosen, widths = extended, wider
    return frozenset(chosen)


def _cheap_chains(
    graph: fx.Graph, state: StateInventory, sizes: Mapping[fx.Node, int | None]
) -> dict[fx.Node, frozenset[fx.Node]]:
    """Per value that could be recomputed all that is computed for it, itself included.

    A chain goes back until a value that takes fewer bytes than what it would follow from.
    """
    touched: set[fx.Node] = set()
    for group in alias_groups(graph):
        members = set(group)
        if any(members.intersection(written(user)) for node in group for user in node.users):
            touched |= members
    chains: dict[fx.Node, frozenset[fx.Node]] = {}
    sources: dict[fx.Node, frozenset[fx.Node]] = {}  # what a chain starts from
    for node in graph.nodes:
        if node in touched or kind_of(node) is not ValueKind.TENSOR or not _is_cheap(node):
            continue
        inputs = node.all_input_nodes
        if not all(each in chains or _is_source(each, touched, state) for each in inputs):
            continue
        further = [each for each in inputs if each in chains and _is_wide(each, sources, sizes)]
        ends = frozenset(each for each in inputs if each not in further and each.op != "get_attr")
        sources[node] = ends.union(*(sources[each] for each in further))
        chains[node] = frozenset({node}).union(*(chains[each] for each in further))
    return chains


def _is_wide(
    node: fx.Node,
    sources: Mapping[fx.Node, frozenset[fx.Node]],
    sizes: Mapping[fx.Node, int | None],
) -> bool:
    """Whether a value takes more bytes than what it follows from."""
    return (sizes[node] or 0) > sum(sizes[each] or 0 for each in sources[node])


def _is_source(node: fx.Node, touched: set[fx.Node], state: StateInventory) -> bool:
    """Whether a recomputed value may start from it: an input, a number, what nobody trains."""
    if node in touched:
        return False
    if node.op == "get_attr":
        return not state.find(str(node.target)).is_parameter
    return node.op == "placeholder" or kind_of(node) is ValueKind.SCALAR


def _is_cheap(node: fx.Node) -> bool:
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return False
    if has_effect(node) or is_random(node):
        return False
    if target.overloadpacket in _CHEAP or torch.Tag.pointwise in target.tags:
        return True
    if target.overloadpacket in _PRODUCTS:
        factor = node.args[0]
        assert isinstance(factor, fx.Node)
        terms = _hint(factor.meta["val"].shape[-1])
        return terms is not None and terms <= _MAX_TERMS
    return _is_view(node)


def _work(node: fx.Node, sizes: Mapping[fx.Node, int | None]) -> int | None:
    """Bytes that computing it reads and writes; None when they depend on values."""
    moved = [sizes[each] for each in (node, *node.all_input_nodes)]
    if None in moved:
        return None
    return 0 if _is_view(node) else sum(filter(None, moved))


def _is_view(node: fx.Node) -> bool:
    target: Any = node.target
    return any(each.alias_info is not None for each in target._schema.returns)


def _widths(
    graph: fx.Graph,
    levels: Mapping[fx.Node, int],
    legal: Sequence[int],
    sizes: Mapping[fx.Node, int | None],
    recomputed: set[fx.Node],
) -> list[int]:
    """Bytes that cross each legal cut; a value whose size depends on values counts as none."""
    change = [0] * (max(legal, default=0) + 2)
    for node, last in last_uses(graph, levels, recomputed).items():
        start = levels[node] + 1
        if node.op != "get_attr" and start <= last and start < len(change):
            change[start] += sizes[node] or 0
            change[min(last + 1, len(change) - 1)] -= sizes[node] or 0
    sums = list(accumulate(change))
    return [sums[position] for position in legal]


def _num_bytes(value: Any) -> int | None:
    """Bytes on the wire for the example's sizes; None when they depend on values."""
    if not isinstance(value, torch.Tensor):
        return 8
    numel = _hint(value.numel())
    return None if numel is None else numel * value.element_size() + _HEADER_BYTES


def _hint(size: int | torch.SymInt) -> int | None:
    return size if isinstance(size, int) else size.node.hint
