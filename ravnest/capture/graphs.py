"""A captured graph of one mode and what can be read off it: order, writes, aliases, kinds of value.

Works on torch.fx nodes whose `meta["val"]` holds the fake value that torch.export traced. Knows
nothing of costs, cuts or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import fx

from ravnest.capture.leaves import LeafCall
from ravnest.plan.structure import Structure

_aten = torch.ops.aten

# Their schemas do not say that they write the running statistics: position of (mean, variance,
# flag).
_STATISTICS_WRITERS: dict[Any, tuple[int, int, int]] = {
    _aten.batch_norm.default: (3, 4, 5),
    _aten.instance_norm.default: (3, 4, 5),
    _aten.native_batch_norm.default: (3, 4, 5),
}
_ASSERTIONS = frozenset({_aten._assert_scalar.default, _aten._assert_async.msg})


class ValueKind(StrEnum):
    """What a node yields, as far as sending it matters."""

    TENSOR = "tensor"
    SCALAR = "scalar"
    OTHER = "other"


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph:
    """The graph of one mode (train or eval).

    Attributes:
        graph: placeholders have the input's wire name as target, get_attr nodes the stored name;
            the output node's only argument is the tuple of output leaves (nodes or plain scalars).
        output_structure: how the model nests its output leaves.
    """

    graph: fx.Graph
    output_structure: Structure

    @property
    def computing(self) -> tuple[fx.Node, ...]:
        """The nodes that compute, in order; a position is an index into this."""
        return tuple(computing_nodes(self.graph))

    @property
    def outputs(self) -> tuple[Any, ...]:
        """The output leaves: nodes or plain scalars."""
        leaves: tuple[Any, ...] = self.graph.output_node().args[0]  # type: ignore[assignment]
        return leaves


def computing_nodes(graph: fx.Graph) -> Iterator[fx.Node]:
    """Every node but placeholders, state look-ups and the output, in order."""
    return (node for node in graph.nodes if node.op == "call_function")


def wire_name(node: fx.Node) -> str:
    """The name a value has between stages: an input's own, else the node's."""
    return str(node.target) if node.op == "placeholder" else node.name


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument given by position or by keyword."""
    return node.args[index] if index < len(node.args) else node.kwargs.get(name, default)


def written(node: fx.Node) -> tuple[fx.Node, ...]:
    """The nodes whose values this node changes in place."""
    target = node.target
    if isinstance(target, LeafCall):
        state: Any = node.args[1]
        return tuple(state[len(target.spec.parameters) :])
    if not isinstance(target, torch._ops.OpOverload):
        return ()
    if target in _STATISTICS_WRITERS:
        mean, variance, flag = _STATISTICS_WRITERS[target]
        names = [declared.name for declared in target._schema.arguments]
        places = (mean, variance) if argument(node, flag, names[flag]) else ()
        given = (argument(node, i, names[i]) for i in places)
        return tuple(each for each in given if isinstance(each, fx.Node))
    if not target._schema.is_mutable:
        return ()
    found: list[fx.Node] = []
    for index, declared in enumerate(target._schema.arguments):
        if declared.alias_info is not None and declared.alias_info.is_write:
            _collect(argument(node, index, declared.name), found)
    return tuple(found)


def _collect(value: Any, into: list[fx.Node]) -> None:
    fx.node.map_arg(value, into.append)


def has_effect(node: fx.Node) -> bool:
    """Whether the node matters even when nobody reads its value."""
    return node.op in ("placeholder", "output") or node.target in _ASSERTIONS or bool(written(node))


def is_random(node: fx.Node) -> bool:
    """Whether the node draws from the random generator with the arguments it has."""
    target: Any = node.target
    if isinstance(target, LeafCall):
        return True  # it may
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target in (_aten.fractional_max_pool2d.default, _aten.fractional_max_pool3d.default):
        return False  # its random samples are an argument
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    names = [declared.name for declared in target._schema.arguments]
    given = {name: argument(node, i, name) for i, name in enumerate(names)}
    if given.get("train") is False or given.get("training") is False:
        return False
    # sdpa has dropout_p = 0 by default; dropout, lstm and gru have no default for theirs.
    probability = given.get("dropout_p", given.get("dropout"))
    if {"dropout_p", "dropout"} & set(names):
        return bool(probability)
    return not ("p" in given and "dropout" in target._schema.name and given["p"] == 0)


def kind_of(node: fx.Node) -> ValueKind:
    """What the node yields, by the value it was traced with."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return ValueKind.TENSOR
    if isinstance(value, (bool, int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return ValueKind.SCALAR
    return ValueKind.OTHER


def alias_groups(graph: fx.Graph) -> list[list[fx.Node]]:
    """All nodes in groups that may share memory, each group in order of the graph.

    Two nodes are grouped when the traced values share a storage, when an operator's schema says so
    (a `reshape` that copied here may be a view elsewhere), or when both look up the same stored
    tensor.
    """
    parent: dict[Any, Any] = {}

    def root(key: Any) -> Any:
        while parent.setdefault(key, key) != key:
            parent[key] = key = parent[parent[key]]
        return key

    for node in graph.nodes:
        for key in _memory_keys(node):
            parent[root(key)] = root(node)
    groups: dict[Any, list[fx.Node]] = {}
    for node in graph.nodes:
        groups.setdefault(root(node), []).append(node)
    return list(groups.values())


def _memory_keys(node: fx.Node) -> Iterable[Any]:
    """What identifies the memory a node's value lies in."""
    if node.op == "output":
        return
    if node.op == "get_attr":
        yield ("stored", node.target)
    values = node.meta.get("val")
    for value in values if isinstance(values, (list, tuple)) else (values,):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            yield ("storage", value.untyped_storage()._cdata)
    yield from written(node) if not is_statistics_writer(node) else ()
    yield from viewed(node)


def viewed(node: fx.Node) -> Iterator[Any]:
    """The inputs that the node's value may share memory with."""
    if isinstance(node.target, LeafCall):
        inputs: Any = node.args[0]
        yield from inputs  # its results may be views of them
    elif isinstance(node.target, torch._ops.OpOverload):
        for index, declared in enumerate(node.target._schema.arguments):
            given = argument(node, index, declared.name)
            if declared.alias_info is not None and isinstance(given, fx.Node):
                yield given
    elif node.op == "call_function" and node.args and kind_of(node) is ValueKind.TENSOR:
        yield node.args[0]  # getitem of a tuple or list


def is_statistics_writer(node: fx.Node) -> bool:
    """Whether the node writes running statistics that its own value does not share memory with."""
    return node.target in _STATISTICS_WRITERS or isinstance(node.target, LeafCall)
