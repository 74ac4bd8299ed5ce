"""Turns an exported program into the plain graph the rest of the room works on.

Afterwards there are only placeholders with wire names, look-ups of stored names, allowed operators
and an output of leaves. What stood under no_grad gets its inputs detached, what stood under
autocast has that noted, the exporter's own assertions are gone, and operators whose success depends
on strides (`view`) have their tolerant form (`reshape`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from ravnest.capture import operators
from ravnest.capture.diagnosis import origin
from ravnest.capture.graphs import CapturedGraph, has_effect, is_random
from ravnest.capture.leaves import LeafCall
from ravnest.capture.regions import device_type
from ravnest.capture.scopes import AutocastScope, GradientScope
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
    inputs = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    flattener = _Flattener(mode, iter(input_names), device_type(inputs), traced.leaves)
    for node in module.graph.nodes:
        flattener.take(node, module)
    flat, tensors = flattener.flat, flattener.tensors
    flat.eliminate_dead_code(is_impure_node=has_effect)
    _check_operators(flat, mode)
    used = {node.target for node in flat.nodes if node.op == "get_attr"}
    return (
        CapturedGraph(flat, traced.structure),
        {name: tensor for name, tensor in tensors.items() if name in used},
    )


class _Flattener:
    """Copies an exported graph node by node, and keeps track of the scopes it goes through."""

    def __init__(
        self,
        mode: str,
        input_names: Iterator[str],
        device_type: str,
        leaves: Mapping[Any, LeafCall],
    ) -> None:
        self.flat = fx.Graph()
        self.tensors: dict[str, torch.Tensor] = {}
        self._mode = mode
        self._replaced = {**_REPLACED, **leaves}
        self._input_names = input_names
        self._mapping: dict[fx.Node, Any] = {}
        self._gradients = GradientScope(self.flat)
        self._autocasts = AutocastScope(device_type)

    def _portable(self, target: Any) -> Any:
        """The operator to keep in the graph for this one."""
        if isinstance(target, torch._ops.OpOverload) and target not in self._replaced:
            return _REPLACED_BY_NAME.get(target._schema.name, target)
        return self._replaced.get(target, target)

    def take(self, node: fx.Node, module: nn.Module) -> None:
        """Takes over the next node of the exported graph."""
        if node.op == "placeholder":
            copied = self.flat.placeholder(node.name)
            self._mapping[node] = _described(copied, node, target=next(self._input_names))
        elif node.op == "get_attr":
            self._mapping[node] = self._look_up(node, _attribute(module, str(node.target)))
        elif node.op == "output":
            results: Any = node.args[0]
            self.flat.output(fx.node.map_arg(tuple(results), self._mapping.__getitem__))
        elif node.target is torch._C._set_grad_enabled:
            self._gradients.enable(bool(node.args[0]))
        elif node.target is torch.amp.autocast_mode._enter_autocast:
            self._autocasts.enter(node)
        elif node.target is torch.amp.autocast_mode._exit_autocast:
            self._autocasts.leave(node)
        elif node.target not in _DROPPED:
            self._mapping[node] = self._call(node)

    def _look_up(self, node: fx.Node, value: Any) -> fx.Node | None:
        if not isinstance(value, torch.Tensor):
            return None  # the graph of a region, whose use is refused
        name = str(node.target).removeprefix(PREFIX)
        self.tensors[name] = value
        return _described(self.flat.get_attr(node.name), node, target=name)

    def _call(self, node: fx.Node) -> fx.Node:
        """Copies one computing node, or finds what stands for it."""
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            kind = node.target.__name__
            raise CaptureError(
                f"{kind} in {self._mode} mode cannot be put into a stage{origin(node)}",
                hint=_REGION_ADVICE.get(kind, "write that part with ordinary torch operators"),
            )
        found: tuple[Any, ...] = tuple(self._mapped(each) for each in node.args)
        if node.target is _aten.slice.Tensor and _is_whole(found, node.kwargs):
            whole: fx.Node = found[0]
            return whole
        copied = self.flat.create_node(
            "call_function",
            self._portable(node.target),
            self._gradients.passed(found),
            self._gradients.passed({key: self._mapped(v) for key, v in node.kwargs.items()}),
            name=node.name,
        )
        _described(copied, node)
        self._autocasts.put_inside(copied)
        return self._gradients.result(copied, found)

    def _mapped(self, value: Any) -> Any:
        return fx.node.map_arg(value, self._mapping.__getitem__)


def _described(new: fx.Node, old: fx.Node, target: str | None = None) -> fx.Node:
    new.meta = dict(old.meta)
    if target is not None:
        new.target = target
    return new


def _is_whole(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a slice takes everything, as `x[:, None]` is recorded."""
    given = dict(enumerate(args))
    start, end, step = given.get(2), given.get(3, sys.maxsize), given.get(4, 1)
    return not kwargs and start in (0, None) and end == sys.maxsize and step == 1


_REGION_ADVICE = {"cond": "use torch.where, which computes both sides"}


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
        if not isinstance(node.target, LeafCall) and operators.name_of(node.target) is None:
            raise CaptureError(
                f"operator {node.target} in {mode} mode is none that a provider runs{origin(node)}",
                hint="use another operator, or add a safe one to ravnest/capture/operators.py",
            )
        if is_random(node):
            node.meta["random_position"] = position
        position += 1
