"""Builds the input signature from what the exporter found out about the example's sizes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ravnest.capture.example import Example
from ravnest.capture.graphs import CapturedGraph
from ravnest.capture.guards import Expression, is_plain_bound, parse
from ravnest.capture.signature import ConstantLeaf, DynamicDim, InputSignature, TensorLeaf
from ravnest.capture.tracing import Traced

logger = logging.getLogger(__name__)

Mode = tuple[Traced, CapturedGraph]
# The exporter assumes sizes of at least 2 while tracing; only a larger bound is the model's own.
_ASSUMED_MINIMUM = 2


@dataclass(slots=True)
class _Size:
    """What both modes know of one size, or of several that must be equal."""

    fixed: int | None = None
    minimum: int = 0
    maximum: int | None = None

    def narrow(self, other: _Size) -> None:
        self.fixed = other.fixed if self.fixed is None else self.fixed
        self.minimum = max(self.minimum, other.minimum)
        bounds = [bound for bound in (self.maximum, other.maximum) if bound is not None]
        self.maximum = min(bounds, default=None)


@dataclass(slots=True)
class _Sizes:
    """Union-find over dimensions and the symbols of both modes."""

    parent: dict[Any, Any] = field(default_factory=dict)
    known: dict[Any, _Size] = field(default_factory=dict)

    def root(self, key: Any) -> Any:
        while self.parent.setdefault(key, key) != key:
            key = self.parent[key]
        return key

    def join(self, key: Any, other: Any) -> None:
        first, second = self.root(key), self.root(other)
        if first != second:
            self.parent[second] = first
            self.size(first).narrow(self.known.pop(second, _Size()))

    def size(self, key: Any) -> _Size:
        return self.known.setdefault(self.root(key), _Size())


def sign(example: Example, modes: Sequence[Mode]) -> InputSignature:
    """The signature that both modes of a captured model can run with.

    A size is fixed when one mode fixed it, ranges are intersected, and sizes that must agree in one
    mode must agree in both. A size of 1 is always allowed where no larger one is required.
    """
    sizes = _Sizes()
    for traced, graph in modes:
        for key, dim in _dims(graph):
            _learn(sizes, key, dim, traced)
    names: dict[Any, str] = {}
    dims: dict[tuple[int, int], int | DynamicDim] = {}
    for key, _ in _dims(modes[0][1]):
        size = sizes.size(key)
        symbol = names.setdefault(sizes.root(key), f"d{len(names)}")
        dims[key] = (
            DynamicDim(symbol, size.minimum, size.maximum) if size.fixed is None else size.fixed
        )
    leaves: list[TensorLeaf | ConstantLeaf] = []
    num_tensors = 0
    for leaf in example.leaves:
        if isinstance(leaf, ConstantLeaf):
            leaves.append(leaf)
            continue
        shape = tuple(dims[num_tensors, d] for d in range(leaf.value.dim()))
        if shape and all(traced.batch_is_open for traced, _ in modes):
            shape = (DynamicDim("batch", 1, None), *shape[1:])
        leaves.append(TensorLeaf(f"input.{leaf.path}", leaf.value.dtype, shape))
        num_tensors += 1
    guards = tuple(dict.fromkeys(guard for mode in modes for guard in _guards(mode, dims)))
    return InputSignature(example.arguments, tuple(leaves), guards)


def _dims(graph: CapturedGraph) -> Iterator[tuple[tuple[int, int], int | torch.SymInt]]:
    """((tensor, dimension), size) over the graph's inputs."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(placeholders):
        for d, size in enumerate(node.meta["val"].shape):
            yield (index, d), size


def _learn(sizes: _Sizes, key: tuple[int, int], dim: int | torch.SymInt, traced: Traced) -> None:
    expression = dim if isinstance(dim, int) else dim.node.expr
    if isinstance(expression, int) or expression.is_number:
        sizes.size(key).narrow(_Size(fixed=int(expression)))
        return
    bounds = traced.program.range_constraints.get(expression)
    if bounds is not None:
        lower, upper = str(bounds.lower), str(bounds.upper)
        minimum = int(lower) if lower.isdigit() else 0
        maximum = int(upper) if upper.isdigit() else None
        sizes.size(key).narrow(
            _Size(minimum=1 if minimum == _ASSUMED_MINIMUM else minimum, maximum=maximum)
        )
    if expression.is_Symbol:
        sizes.join((id(traced), str(expression)), key)


def _guards(mode: Mode, dims: dict[tuple[int, int], int | DynamicDim]) -> Iterator[Expression]:
    """Conditions of one mode that ranges and equal symbols do not say already."""
    traced, graph = mode
    known: dict[str, int | str] = {}
    texts: list[str] = list(getattr(traced.program, "_guards_code", None) or ())
    derived: list[tuple[str, str]] = []
    for (index, d), dim in _dims(graph):
        allowed = dims[index, d]
        size = allowed if isinstance(allowed, int) else allowed.symbol
        source = f"L['tensors'][{index}].size()[{d}]"
        known[source] = size
        if isinstance(dim, torch.SymInt) and dim.node.expr.is_Symbol:
            known[str(dim.node.expr)] = size
        elif isinstance(dim, torch.SymInt):
            derived.append((source, str(dim.node.expr)))
    texts += [f"{source} == {expression}" for source, expression in derived]
    for text in texts:
        try:
            guard = parse(text, known)
        except ValueError:
            logger.warning(
                "the condition %.200s that the model was captured under is not checked; "
                "inputs of sizes that break it give wrong results",
                text,
            )
            continue
        if not is_plain_bound(guard):
            yield guard
