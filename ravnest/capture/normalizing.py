"""Turns an exported program into the plain graph the rest of the room works on.

Afterwards there are only placeholders with wire names, look-ups of stored names, allowed operators
and an output of leaves: no_grad regions are inlined, the exporter's own assertions are gone, and
operators whose success depends on strides (`view`) have their tolerant form (`reshape`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ravnest.capture import operators
from ravnest.capture.diagnosis import origin
from ravnest.capture.graphs import CapturedGraph, has_effect, is_random
from ravnest.capture.tracing import PREFIX, Traced
from ravnest.errors import CaptureError

_aten = torch.ops.aten
_DROPPED = frozenset(
    {
        _aten._assert_tensor_metadata.default,
        _aten.sym_constrain_range.default,
        _aten.sym_constrain_range_for_size.default,
    }
)
# The first depends on strides, which differ between devices and after a wire; the second is the
# same to whoever uses its result, and looks like a write to memory.
_REPLACED: dict[Any, Any] = {
    _aten.view.default: _aten.reshape.default,
    _aten.detach_.default: _aten.detach.default,
}
# What transformers puts in this operator's place while a model is traced, for compilers' sake.
_REPLACED_BY_NAME: dict[str, Any] = {
    "transformers::grouped_mm_fallback": _aten._grouped_mm.default,
}


def normalize(
    traced: Traced, input_names: Sequence[str], mode: str
) -> tuple[CapturedGraph, dict[str, torch.Tensor]]:
    """The graph of one mode, and the tensors it looks up by exported name (without the prefix).

    Raises:
        CaptureError: an operator or region that a stage file cannot hold.
    """
    module = traced.program.module(check_guards=False)
    flat = fx.Graph()
    mapping: dict[fx.Node, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    names = iter(input_names)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            mapping[node] = _copied(flat.placeholder(node.name), node, target=next(names))
        elif node.op == "get_attr":
            value = _attribute(module, node.target)
            if isinstance(value, torch.Tensor):
                name = node.target.removeprefix(PREFIX)
                tensors[name] = value
                mapping[node] = _copied(flat.get_attr(node.name), node, target=name)
            else:
                mapping[node] = value  # the graph of a region
        elif node.op == "output":
            flat.output(fx.node.map_arg(tuple(node.args[0]), mapping.__getitem__))
        else:
            mapping[node] = _copy_call(flat, node, mapping, mode)
    flat.eliminate_dead_code(is_impure_node=has_effect)
    _check_operators(flat, mode)
    used = {node.target for node in flat.nodes if node.op == "get_attr"}
    return (
        CapturedGraph(flat, traced.structure),
        {name: tensor for name, tensor in tensors.items() if name in used},
    )


def _copy_call(flat: fx.Graph, node: fx.Node, mapping: dict[fx.Node, Any], mode: str) -> Any:
    """Copies one computing node, or what stands for it."""
    if node.target in _DROPPED:
        return None
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _inline(flat, node, mapping, mode)
    args = tuple(_mapped(argument, mapping) for argument in node.args)
    if node.target is _aten.slice.Tensor and _is_whole(args, node.kwargs):
        return args[0]
    if isinstance(args[0] if args else None, tuple):  # getitem of an inlined region's results
        return args[0][args[1]]
    copied = flat.create_node(
        "call_function",
        _portable(node.target),
        args,
        {key: _mapped(value, mapping) for key, value in node.kwargs.items()},
        name=node.name,
    )
    return _copied(copied, node)


def _portable(target: Any) -> Any:
    """The operator to keep in the graph for this one."""
    if isinstance(target, torch._ops.OpOverload) and target.namespace != "aten":
        return _REPLACED_BY_NAME.get(target._schema.name, target)
    return _REPLACED.get(target, target)


def _mapped(value: Any, mapping: dict[fx.Node, Any]) -> Any:
    """An argument with its nodes replaced; a region's results stay a plain tuple."""
    if isinstance(value, fx.Node):
        return mapping[value]
    return fx.node.map_arg(value, mapping.__getitem__)


def _inline(flat: fx.Graph, node: fx.Node, mapping: dict[fx.Node, Any], mode: str) -> Any:
    """Puts a region's nodes in its place.

    Inputs of a no_grad region are detached, so that nothing in it wants a gradient; a disabled
    autocast changes nothing.

    Raises:
        CaptureError: another kind of region.
    """
    kind = node.target.__name__  # type: ignore[union-attr]
    if kind == "wrap_with_set_grad_enabled":
        enabled, region, *inputs = node.args
        detach = not enabled
    elif kind == "wrap_with_autocast" and node.args[2] is False:
        region, *inputs = node.args[4:]
        detach = False
    else:
        advice = {
            "wrap_with_autocast": "drop torch.autocast from forward; set the precision on the node",
            "cond": "use torch.where, which computes both sides",
        }
        raise CaptureError(
            f"{kind} in {mode} mode cannot be put into a stage{origin(node)}",
            hint=advice.get(kind, "write that part with ordinary torch operators"),
        )
    graph = mapping[region].graph  # type: ignore[index]
    given = iter([_mapped(value, mapping) for value in inputs])
    inner: dict[fx.Node, Any] = {}
    for each in graph.nodes:
        if each.op == "placeholder":
            value = next(given)
            inner[each] = _detached(flat, value) if detach else value
        elif each.op == "output":
            results = each.args[0]
            return (
                tuple(_mapped(result, inner) for result in results)
                if isinstance(results, (tuple, list))
                else _mapped(results, inner)
            )
        elif each.op == "get_attr":
            inner[each] = _attribute(mapping[region], each.target)  # type: ignore[index]
        else:
            inner[each] = _copy_call(flat, each, inner, mode)
    raise AssertionError("a graph has an output")


def _detached(flat: fx.Graph, value: Any) -> Any:
    if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
        return value
    if value.op == "get_attr" and not value.meta["val"].requires_grad:
        return value
    node = flat.call_function(_aten.detach.default, (value,))
    node.meta = dict(value.meta)
    return node


def _copied(new: fx.Node, old: fx.Node, target: str | None = None) -> fx.Node:
    new.meta = dict(old.meta)
    if target is not None:
        new.target = target
    return new


def _is_whole(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a slice takes everything, as `x[:, None]` is recorded."""
    given = dict(enumerate(args))
    start, end, step = given.get(2), given.get(3, sys.maxsize), given.get(4, 1)
    return not kwargs and start in (0, None) and end == sys.maxsize and step == 1


def _attribute(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _check_operators(graph: fx.Graph, mode: str) -> None:
    """Refuses what a stage file cannot hold, and numbers the random operators by position."""
    position = 0
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if operators.name_of(node.target) is None:
            raise CaptureError(
                f"operator {node.target} in {mode} mode is none that a provider runs{origin(node)}",
                hint="use another operator, or add a safe one to ravnest/capture/operators.py",
            )
        if is_random(node):
            node.meta["random_position"] = position
        position += 1
