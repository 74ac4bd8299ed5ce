"""Cuts a captured model into stages: per stage one graph per mode, and the state it owns.

A value that is needed later passes through every stage between its maker and its last reader, so
that the outputs of one stage are exactly the inputs of the next. Values that are recomputed (see
`recomputing`) are not sent; each stage has the nodes that make them.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ravnest.capture.exporting import CapturedModel
from ravnest.capture.graphs import (
    CapturedGraph,
    ValueKind,
    alias_groups,
    kind_of,
    wire_name,
    written,
)
from ravnest.capture.recomputing import last_uses, recomputed_for
from ravnest.capture.stages import StageGraph, StageGraphs
from ravnest.capture.state import StateInventory
from ravnest.capture.values import ValueSpec
from ravnest.errors import CaptureError

_DETACHING = frozenset({torch.ops.aten.detach.default})


def split(captured: CapturedModel, cuts: Sequence[int]) -> tuple[StageGraphs, ...]:
    """Cuts a captured model before the given positions.

    Args:
        captured: the model; its tensors are shared, not copied.
        cuts: increasing positions out of `captured.costs.cuts`; none gives one stage.

    Raises:
        CaptureError: a position is not legal, or they are not increasing.
    """
    _check_cuts(captured, cuts)
    state, placement = captured.state, captured.placement
    gradients = _differentiable(captured.train.graph, state)
    gradients = {node for node in gradients if node.name in captured.needs_gradient}
    train = _split_mode(captured.train, placement.train, cuts, gradients, placement.recomputed)
    gradients = _differentiable(captured.eval.graph, state)
    evaluation = _split_mode(captured.eval, placement.eval, cuts, gradients, placement.recomputed)
    return tuple(
        _assemble(captured, cuts, index, train[index], evaluation[index])
        for index in range(len(cuts) + 1)
    )


def _check_cuts(captured: CapturedModel, cuts: Sequence[int]) -> None:
    legal = captured.placement.legal
    for before, cut in zip((-1, *cuts), cuts, strict=False):
        if cut <= before:
            raise CaptureError(f"cuts {list(cuts)} are not increasing")
        if cut not in legal:
            at = bisect.bisect(legal, cut)
            raise CaptureError(
                f"the model cannot be cut at {cut}",
                hint=f"the nearest legal positions are {list(legal[max(at - 1, 0) : at + 1])}",
            )


def _assemble(
    captured: CapturedModel,
    cuts: Sequence[int],
    index: int,
    train: StageGraph,
    evaluation: StageGraph,
) -> StageGraphs:
    """Adds to a stage's graphs the state they use, and the unused state placed here."""
    state = captured.state
    used = {
        str(node.target)
        for stage in (train, evaluation)
        for node in stage.graph.nodes
        if node.op == "get_attr"
    }
    owners = {name: bisect.bisect(cuts, captured.placement.owners[name]) for name in state.stored}
    owned = {name: each for name, each in state.stored.items() if owners[name] == index}
    replicas = {
        name: each
        for name, each in state.stored.items()
        if name in used and name not in owned and each.trainable
    }
    return StageGraphs(
        index=index,
        num_stages=len(cuts) + 1,
        parameters={name: each for name, each in owned.items() if each.is_parameter},
        buffers={name: each for name, each in owned.items() if not each.is_parameter},
        replicas=replicas,
        replica_owners={name: owners[name] for name in replicas},
        constants={
            name: state.find(name) for name in sorted(used - owned.keys() - replicas.keys())
        },
        train=train,
        eval=evaluation,
        signature=captured.signature if index == 0 else None,
    )


def _split_mode(
    captured: CapturedGraph,
    levels: Mapping[fx.Node, int],
    cuts: Sequence[int],
    differentiable: set[fx.Node],
    recomputed: frozenset[fx.Node],
) -> list[StageGraph]:
    stage_of = {
        node: 0 if node.op == "placeholder" else bisect.bisect(cuts, level)
        for node, level in levels.items()
    }
    last = last_uses(captured.graph, levels, recomputed)
    last_use = {node: bisect.bisect(cuts, level) for node, level in last.items()}
    computed = _computed(captured.graph, stage_of, recomputed)
    values = [node for node in captured.graph.nodes if node.op in ("placeholder", "call_function")]
    stages: list[StageGraph] = []
    entering = [node for node in values if node.op == "placeholder" and node.users]
    for index in range(len(cuts) + 1):
        is_leaf = index == len(cuts)
        leaving = [n for n in values if stage_of[n] <= index < last_use[n]]
        own = [n for n in values if n in computed.get(index, ())]
        cloned = _mutated_inputs(captured.graph) if index == 0 else set()
        graph = _build(entering, own, captured.outputs if is_leaf else leaving, cloned)
        outputs = (
            tuple(_output_spec(i, leaf, differentiable) for i, leaf in enumerate(captured.outputs))
            if is_leaf
            else tuple(_spec(node, differentiable) for node in leaving)
        )
        stages.append(
            StageGraph(
                graph,
                tuple(_spec(node, differentiable) for node in entering),
                outputs,
                captured.output_structure if is_leaf else None,
            )
        )
        entering = leaving
    return stages


def _computed(
    graph: fx.Graph, stage_of: Mapping[fx.Node, int], recomputed: frozenset[fx.Node]
) -> dict[int, set[fx.Node]]:
    """Per stage its own nodes, and what they need that is recomputed."""
    computed: dict[int, set[fx.Node]] = {}
    for node in graph.nodes:
        if node.op in ("call_function", "output") and node not in recomputed:
            here = computed.setdefault(stage_of[node], set())
            here.update(recomputed_for(node, recomputed))
            if node.op == "call_function":
                here.add(node)
    return computed


def _build(
    entering: Sequence[fx.Node],
    own: Sequence[fx.Node],
    results: Sequence[Any],
    cloned: set[fx.Node],
) -> fx.Graph:
    """The graph of one stage; inputs that it writes are cloned first."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def find(node: fx.Node) -> fx.Node:
        if node not in copies:  # state, looked up on every stage that needs it
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node in entering:
        copies[node] = graph.placeholder(node.name)
        copies[node].target = wire_name(node)
    for node in entering:
        if node in cloned:
            copies[node] = graph.call_function(torch.ops.aten.clone.default, (copies[node],))
    for node in own:
        copies[node] = graph.node_copy(node, find)
    graph.output(fx.node.map_arg(tuple(results), find))
    return graph


def _mutated_inputs(graph: fx.Graph) -> set[fx.Node]:
    """Graph inputs whose memory some node writes: the batch is the caller's and must not change.

    Nothing else that a stage receives is ever written there, by the rules for legal cuts.
    """
    found: set[fx.Node] = set()
    for group in alias_groups(graph):
        members = set(group)
        if any(members.intersection(written(user)) for node in group for user in node.users):
            found |= {node for node in group if node.op == "placeholder"}
    return found


def _differentiable(graph: fx.Graph, state: StateInventory) -> set[fx.Node]:
    """Floating values with a trainable parameter among their ancestors, detached ones left out."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            if state.find(str(node.target)).trainable:
                found.add(node)
        elif (
            node.op == "call_function"
            and node.target not in _DETACHING
            and any(each in found for each in node.all_input_nodes)
        ):
            value = node.meta.get("val")
            floating = not isinstance(value, torch.Tensor) or _is_floating(value.dtype)
            if floating and kind_of(node) is not ValueKind.SCALAR:
                found.add(node)
    return found


def _is_floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _spec(node: fx.Node, differentiable: set[fx.Node], name: str | None = None) -> ValueSpec:
    value = node.meta.get("val")
    dtype = value.dtype if isinstance(value, torch.Tensor) else None
    return ValueSpec(
        name=wire_name(node) if name is None else name,
        dtype=dtype,
        is_tensor=dtype is not None,
        differentiable=dtype is not None and node in differentiable,
    )


def _output_spec(index: int, leaf: Any, differentiable: set[fx.Node]) -> ValueSpec:
    name = f"output_{index}"
    if isinstance(leaf, fx.Node):
        return _spec(leaf, differentiable, name)
    return ValueSpec(name, None, False, False)
