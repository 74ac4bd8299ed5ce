"""nn.Module and an example call to a `CapturedModel`: two graphs, state, inputs and costs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ravnest.capture.caches import caches_off, caching_configs
from ravnest.capture.costs import GraphCosts
from ravnest.capture.cuts import Placement, place
from ravnest.capture.diagnosis import Attempt, first_lines, tried
from ravnest.capture.example import (
    Example,
    ExampleTensor,
    doubled,
    take_example,
    tile_single,
    without_values,
)
from ravnest.capture.graphs import CapturedGraph
from ravnest.capture.measuring import measure
from ravnest.capture.normalizing import normalize
from ravnest.capture.scripting import ScriptMirror, mirror_script
from ravnest.capture.signature import InputSignature
from ravnest.capture.signing import sign
from ravnest.capture.state import StateInventory, StoredTensor, take_inventory
from ravnest.capture.tracing import Traced, same_operators, trace
from ravnest.capture.tracing_leaves import check_leaves
from ravnest.errors import CaptureError

logger = logging.getLogger(__name__)


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
    leaves: Mapping[str, str] | None = None,
) -> CapturedModel:
    """Captures a model in train and in eval mode and measures what it costs.

    The model, its training flags and the random generators are afterwards as before.

    Args:
        model: any module, also one on the meta device; submodules frozen by `.eval()` inside a
            training model stay frozen.
        args: example positional inputs.
        kwargs: example keyword inputs; non-tensor values become part of the graph.
        leaves: submodules that stay code, which providers must trust: by path the factory
            `package.module:function` that builds each, a function without arguments.
        run_forward: measure saved activations by a real forward pass instead of shape propagation.

    Raises:
        CaptureError: the model cannot be captured; names module and line where known.
    """
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    if isinstance(model, torch.jit.ScriptModule):
        name = str(getattr(model, "original_name", name))
        model = mirror_script(model, args, kwargs or {})
    _refuse_scripts(model)
    _refuse_module_hooks(model)
    state = take_inventory(model)
    example = take_example(model, args, kwargs or {})
    check_leaves(model, leaves or {})
    if any(each.tensor.is_meta for each in state.stored.values()):
        example = without_values(example)
    traced, traced_eval = _trace_modes(model, tile_single(example), leaves or {})
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
        model_name=name,
        train=train,
        eval=evaluation,
        state=state,
        signature=sign(example, ((traced, train), (traced_eval, evaluation))),
        placement=placement,
        costs=costs,
        needs_gradient=needs_gradient,
    )


def _trace_modes(
    model: nn.Module, example: Example, leaves: Mapping[str, str]
) -> tuple[Traced, Traced]:
    """Both modes, train first; without the cache of keys and values when it is in the way."""

    def both() -> tuple[Traced, Traced]:
        train = trace(model, example, leaves, training=True)
        return train, trace(model, example, leaves, training=False)

    if isinstance(model, ScriptMirror):
        try:
            return _trace_interpreted(model, example) if model.interpreted else both()
        except CaptureError as error:
            raise CaptureError(
                f"a ScriptModule that was {model.how} cannot be captured: {error.message}",
                hint="pass the Python model it was scripted or traced from",
            ) from error
    try:
        return both()
    except CaptureError as error:
        if not caching_configs(model):
            raise
        first = error
    try:
        with caches_off(model):
            traced = both()
    except CaptureError as error:
        attempts = (
            Attempt("as it is", first_lines(first.message, 120)),
            Attempt("with config.use_cache = False", first_lines(error.message, 120)),
        )
        raise CaptureError(f"{error.message}{tried(attempts)}", hint=error.hint) from error
    logger.warning(
        "%s was captured with config.use_cache = False: its outputs during training hold no cache "
        "of keys and values; the model itself and generation with it stay as they are",
        type(model).__name__,
    )
    return traced


def _trace_interpreted(model: ScriptMirror, example: Example) -> tuple[Traced, Traced]:
    """Both modes of a script whose interpreter fixes every size it reads, needed or not.

    The batch size stays open if a trace with twice the batch has the same operators.
    """

    def both(example: Example) -> tuple[Traced, Traced]:
        train = trace(model, example, training=True, num_open=(0,))
        return train, trace(model, example, training=False, num_open=(0,))

    traced = both(example)
    try:
        again = both(doubled(example))
        is_open = all(map(same_operators, traced, again))
    except CaptureError:
        is_open = False
    logger.warning(
        "the ScriptModule was captured by its interpreter, for %s; other inputs will be refused",
        "the example's sizes and any batch size"
        if is_open
        else "exactly the example's shapes, so not for a partial last batch",
    )
    train, evaluation = (replace(each, batch_is_open=is_open) for each in traced)
    return train, evaluation


def _refuse_scripts(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"the submodule {name!r} of {type(model).__name__} is a ScriptModule",
                hint="pass the Python module it was made from, or the ScriptModule as the whole "
                "model",
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
        _refuse_copy(name, tensor, state)
        constants[canonical] = StoredTensor(canonical, tensor, False, False, False)
        renamed[name] = canonical
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            node.target = renamed[str(node.target)]
    return replace(state, constants=constants)


def _refuse_copy(name: str, tensor: torch.Tensor, state: StateInventory) -> None:
    """Refuses a constant that is a parameter under no name, and would not be trained."""
    if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel():
        return
    for stored in state.stored.values():
        own = stored.tensor
        if stored.trainable and not own.is_meta and own.data_ptr() == tensor.data_ptr():
            raise CaptureError(
                f"the captured graph has {stored.name} as a constant ({name}), "
                "so that it would not be trained",
                hint="let forward reach it as an attribute, self.name",
            )


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one is other:
        return True
    if one.is_meta or other.is_meta or one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one, other)
