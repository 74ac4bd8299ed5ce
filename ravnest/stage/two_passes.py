"""A backward pass in two: first the gradients of the inputs, later those of the weights.

The stage before waits for the first alone, so a schedule can put the second where the stage would
wait otherwise (Qi et al. 2024, "Zero Bubble Pipeline Parallelism"; ICLR). Knows autograd graphs; no
microbatches, no weight versions. Uses the public interface of autograd alone.

A node of the graph is on the way when it leads to an input. Where it also has an edge to something
off the way that leads to weights (the product of a linear layer), it is a fork. The first pass runs
over nodes on the way, which is all that autograd runs when asked for the inputs alone, and notes
what arrives at forks. The second starts at each fork with that, and runs over what is off the way.
Nothing is computed twice, and gradients have the bits of a whole backward pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class WeightPass:
    """What is left of a backward pass whose inputs have their gradients.

    Attributes:
        starts: per fork the edges into it, the gradients that came over them, and the weights
            that it leads to.
    """

    starts: tuple[tuple[list[GradientEdge], list[torch.Tensor], list[torch.Tensor]], ...]

    def run(self) -> None:
        """Adds the gradients of the weights to them, as `torch.autograd.backward` does."""
        for edges, gradients, weights in self.starts:
            torch.autograd.backward(edges, gradients, inputs=weights)


def backward_of_inputs(
    roots: Tensors, gradients: Sequence[torch.Tensor | None], inputs: Tensors, weights: Tensors
) -> tuple[list[torch.Tensor | None], WeightPass] | None:
    """The first pass, where a split is possible and pays; else nothing.

    It does not pay where no input leads to the roots. It is not possible where several forks lead
    to one weight: what starts at one of them would run through the others as well.

    Args:
        roots: outputs, or a loss, with their graph.
        gradients: of the roots; None for that of a scalar.
        inputs: whose gradients are wanted now.
        weights: leaves whose gradients are wanted at some time; they gather in `.grad`.

    Returns:
        Gradients of `inputs`, None where there is none; and what is left to do. None when all is,
        by one backward pass over everything.
    """
    graph = _Graph(roots, inputs, weights)
    if not graph.can_split:
        return None
    forks = graph.forks()
    edges = [edge for fork in forks for edge in graph.edges_into(fork)]
    wanted: list[torch.Tensor | GradientEdge] = [*inputs, *edges]
    arrived: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
        roots,
        wanted,  # type: ignore[arg-type]  # which says all tensors, or all edges
        gradients,
        retain_graph=True,
        allow_unused=True,
    )
    came = dict(zip(map(_key, edges), arrived[len(inputs) :], strict=True))
    starts = list(graph.roots_off_the_way(roots, gradients))
    for fork in forks:
        pairs = [(edge, came[_key(edge)]) for edge in graph.edges_into(fork)]
        into = [edge for edge, gradient in pairs if gradient is not None]
        found = [gradient for _, gradient in pairs if gradient is not None]
        if into:
            starts.append((into, found, graph.weights_of(fork)))
    return list(arrived[: len(inputs)]), WeightPass(tuple(starts))


def _key(edge: GradientEdge) -> tuple[Node, int]:
    return edge.node, edge.output_nr


class _Graph:
    """Which nodes lead to inputs and which to weights."""

    def __init__(self, roots: Tensors, inputs: Tensors, weights: Tensors) -> None:
        self._root_edges = [get_gradient_edge(root) for root in roots]
        self._inputs = {get_gradient_edge(each).node for each in inputs}
        self._weights = {get_gradient_edge(each).node: each for each in weights}
        self._outputs: defaultdict[Node, set[int]] = defaultdict(set)
        for edge in self._root_edges:
            self._outputs[edge.node].add(edge.output_nr)
        self._order = self._children_first()
        self._on_the_way: set[Node] = set()
        # Nodes off the way, by what they lead to: that is few and small, so sets are cheap.
        self._leads_to: dict[Node, frozenset[Node]] = {}
        for node in self._order:
            self._classify(node)

    def _children_first(self) -> list[Node]:
        """Every node after all that it leads to; notes which outputs of each have an edge."""
        order: list[Node] = []
        seen: set[Node] = set()
        stack = [(edge.node, False) for edge in self._root_edges]
        while stack:
            node, is_left = stack.pop()
            if is_left:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                stack.append((node, True))
                for child, output in node.next_functions:
                    if child is not None:
                        self._outputs[child].add(output)
                        stack.append((child, False))
        return order

    def _classify(self, node: Node) -> None:
        children = [child for child, _ in node.next_functions if child is not None]
        if node in self._inputs or any(child in self._on_the_way for child in children):
            self._on_the_way.add(node)
        elif node in self._weights:
            self._leads_to[node] = frozenset((node,))
        else:
            self._leads_to[node] = frozenset().union(*map(self._leads_to.__getitem__, children))

    @property
    def can_split(self) -> bool:
        """Whether inputs are reached, and no weight from two places."""
        if not any(edge.node in self._on_the_way for edge in self._root_edges):
            return False
        seen: set[Node] = set()
        off = {e.node for e in self._root_edges if e.node not in self._on_the_way}
        for found in (*(self._off_the_way(fork) for fork in self.forks()), self._union(off)):
            if found & seen:
                return False
            seen |= found
        return True

    def forks(self) -> list[Node]:
        """Nodes on the way with an edge that leads to weights alone, those next to roots first."""
        return [
            node
            for node in reversed(self._order)
            if node in self._on_the_way and self._off_the_way(node)
        ]

    def edges_into(self, node: Node) -> list[GradientEdge]:
        """One per output of the node that is used."""
        return [GradientEdge(node, output) for output in sorted(self._outputs[node])]

    def weights_of(self, fork: Node) -> list[torch.Tensor]:
        """The weights that a fork leads to beside the way."""
        return self._tensors(self._off_the_way(fork))

    def roots_off_the_way(
        self, roots: Tensors, gradients: Sequence[torch.Tensor | None]
    ) -> list[tuple[list[GradientEdge], list[torch.Tensor], list[torch.Tensor]]]:
        """Roots that no input leads to: where the second pass starts beside the forks."""
        off = [
            (edge, torch.ones_like(root) if gradient is None else gradient)
            for edge, root, gradient in zip(self._root_edges, roots, gradients, strict=True)
            if self._leads_to.get(edge.node)
        ]
        weights = self._tensors(self._union({edge.node for edge, _ in off}))
        if not off:
            return []
        return [([edge for edge, _ in off], [gradient for _, gradient in off], weights)]

    def _off_the_way(self, node: Node) -> frozenset[Node]:
        """Weights that a node on the way leads to by edges that leave the way."""
        children = {child for child, _ in node.next_functions if child is not None}
        return self._union(children)

    def _union(self, nodes: set[Node]) -> frozenset[Node]:
        return frozenset().union(*(self._leads_to.get(node, frozenset()) for node in nodes))

    def _tensors(self, nodes: frozenset[Node]) -> list[torch.Tensor]:
        return [tensor for node, tensor in self._weights.items() if node in nodes]
