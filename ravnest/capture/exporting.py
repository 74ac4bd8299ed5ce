"""nn.Module and an example call to a `CapturedModel`: two graphs, state, inputs and costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ravnest.capture.costs import GraphCosts
from ravnest.capture.cuts import Placement, place
from ravnest.capture.example import ExampleTensor, take_example, tile_single, without_values
from ravnest.capture.graphs import CapturedGraph
from ravnest.capture.measuring import measure
from ravnest.capture.normalizing import normalize
from ravnest.capture.signature import InputSignature
from ravnest.capture.signing import sign
from ravnest.capture.state import StateInventory, StoredTensor, take_inventory
from ravnest.capture.tracing import trace
from ravnest.errors import CaptureError


@dataclass(frozen=True, slots=True)
class CapturedModel:
    """A model as data: everything planning and splitting need.

    Attributes:
        model_name: qualified class name, for people.
        train: graph of the train mode; positions and cuts count its computing nodes.
        eval: graph of the eval mode, cut along with the train graph.
        state: parameters, buffers and constants by name.
        signature: what a call must look like.
        placement: which position each node of both graphs goes with.
        costs: FLOPs, bytes and legal cuts, for the planner.
        needs_gradient: names of the train graph's values that autograd tracks.
    """

    model_name: str
    train: CapturedGraph
    eval: CapturedGraph
    state: StateInventory
    signature: InputSignature
    placement: Placement
    costs: GraphCosts
    needs_gradient: frozenset[str]


def capture_model(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    run_forward: bool = False,
) -> CapturedModel:
    """Captures a model in train and in eval mode and measures what it costs.

    The model, its training flags and the random generators are afterwards as before.

    Args:
        model: any module, also one on the meta device; submodules frozen by `.eval()` inside a
            training model stay frozen.
        args: example positional inputs.
        kwargs: example keyword inputs; non-tensor values become part of the graph.
        run_forward: measure saved activations by a real forward pass instead of shape propagation.

    Raises:
        CaptureError: the model cannot be captured; names module and line where known.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise CaptureError(
            f"{type(model).__name__} is or contains a ScriptModule, which cannot be captured",
            hint="pass the Python model it was scripted or traced from",
        )
    _refuse_module_hooks(model)
    state = take_inventory(model)
    example = take_example(model, args, kwargs or {})
    if any(each.tensor.is_meta for each in state.stored.values()):
        example = without_values(example)
    traced_example = tile_single(example)
    traced = trace(model, traced_example, training=True)
    traced_eval = trace(model, traced_example, training=False)
    names = [f"input.{leaf.path}" for leaf in example.leaves if isinstance(leaf, ExampleTensor)]
    train, train_tensors = normalize(traced, names, "train")
    evaluation, eval_tensors = normalize(traced_eval, names, "eval")
    state = _name_state(state, train, train_tensors, "train")
    state = _name_state(state, evaluation, eval_tensors, "eval")
    placement = place(train, evaluation, state)
    costs, needs_gradient = measure(
        train, state, placement, example.tensors, run_forward=run_forward
    )
    return CapturedModel(
        model_name=f"{type(model).__module__}.{type(model).__qualname__}",
        train=train,
        eval=evaluation,
        state=state,
        signature=sign(example, ((traced, train), (traced_eval, evaluation))),
        placement=placement,
        costs=costs,
        needs_gradient=needs_gradient,
    )


def _refuse_module_hooks(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise CaptureError(
                f"module {name!r} has a backward hook, which a captured graph would silently drop",
                hint="remove it before capturing",
            )


def _name_state(
    state: StateInventory, graph: CapturedGraph, tensors: Mapping[str, torch.Tensor], mode: str
) -> StateInventory:
    """Renames the graph's look-ups to stored names and adds its lifted constants to the state."""
    constants = dict(state.constants)
    renamed: dict[str, str] = {}
    for name, tensor in tensors.items():
        canonical = state.aliases.get(name, name)
        if canonical in state.stored or canonical in state.constants:
            known = constants.get(canonical)
            if known is None or _equal(known.tensor, tensor):
                renamed[name] = canonical
                continue
            canonical = f"{canonical}.{mode}"  # another constant that the other mode numbered alike
        constants[canonical] = StoredTensor(canonical, tensor, False, False, False)
        renamed[name] = canonical
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            node.target = renamed[str(node.target)]
    return replace(state, constants=constants)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if one.is_meta or other.is_meta or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one, other)
