"""A stage as a function of explicit state and inputs, compiled once to straight-line Python.

Every name in the generated source is this module's own; operators and arguments are objects that
the loader has checked.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from ravnest.capture.graphs import viewed, written
from ravnest.capture.operators import initialised
from ravnest.capture.regions import Autocasts, Regions, device_type, shared_depth
from ravnest.capture.statistics import check_several, takes_statistics
from ravnest.capture.values import ValueSpec
from ravnest.plan.structure import Structure

SeedOperator = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StageProgram:
    """One mode of a stage.

    Attributes:
        inputs: what a call needs, by name.
        outputs: what it returns, in order.
        output_structure: on the leaf, how the model nests `outputs`.
        state_names: what it looks up in the state.
        written: what of that a call changes in place.
    """

    inputs: tuple[ValueSpec, ...]
    outputs: tuple[ValueSpec, ...]
    output_structure: Structure | None
    state_names: tuple[str, ...]
    written: frozenset[str]
    _function: Callable[..., tuple[Any, ...]] = field(repr=False)

    def __call__(
        self,
        state: Mapping[str, torch.Tensor],
        inputs: Mapping[str, Any],
        seed_operator: SeedOperator,
    ) -> dict[str, Any]:
        """Runs the stage.

        Args:
            state: parameters, buffers and constants by name; may hold other versions than were
                loaded. Buffers are changed in place as the model does, nothing else is.
            inputs: by wire name; further ones are ignored.
            seed_operator: called with an operator's position in the whole model's graph right
                before it draws random numbers; the same however the model is cut.

        Returns:
            The outputs by name, in order; tensors, and plain values where the spec says so.
        """
        given = [state[name] for name in self.state_names]
        given += [inputs[spec.name] for spec in self.inputs]
        with Regions(device_type(given)) as regions:
            values = self._function(seed_operator, regions, *given)
        return {spec.name: value for spec, value in zip(self.outputs, values, strict=True)}


class ProgramBuilder:
    """Collects checked nodes and compiles them."""

    def __init__(self, state_names: tuple[str, ...], inputs: tuple[ValueSpec, ...]) -> None:
        self._graph = fx.Graph()
        self._inputs = inputs
        self._seed = self._graph.placeholder("seed_operator")
        self._regions = self._graph.placeholder("regions")
        self._autocasts: Autocasts = ()
        self._found: dict[tuple[str, str], fx.Node] = {}
        self._received: dict[fx.Node, fx.Node | None] = {}
        for index, name in enumerate(state_names):
            self._found["state", name] = self._graph.placeholder(f"state_{index}")
        for index, spec in enumerate(inputs):
            node = self._found["input", spec.name] = self._graph.placeholder(f"input_{index}")
            if spec.differentiable:
                self._received[node] = None

    def find(self, kind: str, name: str) -> fx.Node | None:
        """The value of a node, input or state name so far."""
        return self._found.get((kind, name))

    def add(
        self,
        name: str,
        target: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        random_position: int | None,
        autocasts: Autocasts = (),
    ) -> bool:
        """Appends a call, inside the given regions; False when the name is taken."""
        if ("node", name) in self._found:
            return False
        if autocasts:
            args, kwargs = fx.node.map_arg((args, kwargs), self._without_leaf)
        self._move_to(autocasts)
        if random_position is not None:
            self._graph.call_function(operator.call, (self._seed, random_position))
        if takes_statistics(target, args):
            self._graph.call_function(check_several, (args[0],))
        safe = initialised(target)
        if safe is torch.ops.aten.zeros.default:
            kwargs = {key: value for key, value in kwargs.items() if key != "memory_format"}
        self._found["node", name] = self._graph.call_function(safe, args, kwargs)
        return True

    def _without_leaf(self, node: fx.Node) -> fx.Node:
        """A view of what was received, so that autocast does not take it for a parameter."""
        if node not in self._received:
            return node
        view = self._received[node]
        if view is None:
            alias = torch.ops.aten.alias.default
            view = self._received[node] = self._graph.call_function(alias, (node,))
        return view

    def _move_to(self, autocasts: Autocasts) -> None:
        """Leaves and enters regions until those given are the open ones."""
        depth = shared_depth(self._autocasts, autocasts)
        for _ in self._autocasts[depth:]:
            self._graph.call_method("leave", (self._regions,))
        for each in autocasts[depth:]:
            self._graph.call_method("enter", (self._regions, each.dtype))
        self._autocasts = autocasts

    def finish(
        self,
        results: tuple[Any, ...],
        outputs: tuple[ValueSpec, ...],
        output_structure: Structure | None,
    ) -> StageProgram:
        """Compiles the program; state that no node reads is not asked for."""
        self._move_to(())
        self._graph.output(results)
        names: list[str] = []
        for (kind, name), node in list(self._found.items()):
            if kind == "state" and node.users:
                names.append(name)
            elif kind == "state":
                self._graph.erase_node(node)
        written_names = self._written()
        module = fx.GraphModule(nn.Module(), self._graph)
        return StageProgram(
            self._inputs, outputs, output_structure, tuple(names), written_names, module.forward
        )

    def _written(self) -> frozenset[str]:
        """The state whose memory some node writes, itself or through a view."""
        names = {
            node: frozenset({name}) for (kind, name), node in self._found.items() if kind == "state"
        }
        found: set[str] = set()
        for node in self._graph.nodes:
            if node.op == "call_function":
                found.update(*(names.get(each, ()) for each in written(node)))
                sources = viewed(node) if _has_schema(node) else node.all_input_nodes
                names[node] = frozenset().union(*(names.get(each, ()) for each in sources))
        return frozenset(found)


def _has_schema(node: fx.Node) -> bool:
    """Whether the operator says which inputs its value shares memory with; getitem does not."""
    return isinstance(node.target, torch._ops.OpOverload)
