"""What the train graph costs: interprets it once on fake tensors (or real ones) and counts.

FLOPs come from torch's FlopCounterMode; saved activations from autograd's own saved-tensor hooks,
each storage counted once, at the node that saved it first.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.capture.cuts import Placement
from ravnest.capture.diagnosis import first_lines
from ravnest.capture.graphs import CapturedGraph
from ravnest.capture.recomputing import last_uses
from ravnest.capture.regions import autocasts_of, device_type, within
from ravnest.capture.state import StateInventory, StoredTensor
from ravnest.errors import CaptureError

logger = logging.getLogger(__name__)

_SCALAR_BYTES = 8


@dataclass(slots=True)
class _Readings:
    """What one interpretation found, by node name."""

    flops: dict[str, float] = field(default_factory=dict)
    saved_bytes: dict[str, int] = field(default_factory=dict)
    written_bytes: dict[str, int] = field(default_factory=dict)
    value_bytes: dict[str, int] = field(default_factory=dict)
    needs_gradient: set[str] = field(default_factory=set)


def measure(
    train: CapturedGraph,
    state: StateInventory,
    placement: Placement,
    inputs: Sequence[torch.Tensor],
    *,
    run_forward: bool,
) -> tuple[GraphCosts, frozenset[str]]:
    """Costs of the train graph, and the names of its values that autograd tracks.

    Args:
        train: graph to interpret.
        state: what it looks up; left as it is.
        placement: positions and legal cuts.
        inputs: example inputs in the order of the placeholders; bytes are for these sizes.
        run_forward: compute for real instead of propagating shapes.

    Raises:
        CaptureError: the graph cannot be interpreted.
    """
    readings = _read(train, state, inputs, run_forward)
    computing = [node.name for node in train.computing]
    stored = tuple(
        ParameterCost(
            each.name,
            each.num_bytes,
            each.trainable,
            each.is_parameter,
            placement.owners[each.name],
            _shared_uses(each, placement),
        )
        for each in state.stored.values()
    )
    costs = GraphCosts(
        forward_flops=tuple(readings.flops[name] for name in computing),
        saved_bytes=tuple(readings.saved_bytes[name] for name in computing),
        output_bytes=tuple(readings.written_bytes[name] for name in computing),
        stored=stored,
        cuts=_cuts(train, placement, readings, len(computing)),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs),
    )
    return costs, frozenset(readings.needs_gradient)


def _shared_uses(each: StoredTensor, placement: Placement) -> tuple[int, ...]:
    is_shared = each.name in placement.shared and len(placement.uses[each.name]) > 1
    return placement.uses[each.name] if is_shared else ()


def _read(
    train: CapturedGraph,
    state: StateInventory,
    inputs: Sequence[torch.Tensor],
    run_forward: bool,
) -> _Readings:
    tensors = {name: state.find(name).tensor for name in _looked_up(train)}
    if not run_forward:
        try:
            return _interpret_fake(train, tensors, inputs)
        except Exception as error:  # sizes that depend on values, and operators without shape rules
            logger.warning(
                "costs cannot be found by shapes alone (%s); a real forward pass is run instead",
                first_lines(str(error)),
            )
    own = {
        name: tensor if isinstance(tensor, nn.Parameter) else tensor.detach().clone()
        for name, tensor in tensors.items()
    }
    try:
        with torch.random.fork_rng(devices=[]):
            return _interpret(train, own, [tensor.clone() for tensor in inputs])
    except Exception as error:
        raise CaptureError(
            f"the captured train graph cannot be run on the example: {first_lines(str(error))}",
            hint="check that the example fits the model in train mode",
        ) from error


def _looked_up(graph: CapturedGraph) -> set[str]:
    return {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}


def _interpret_fake(
    train: CapturedGraph, tensors: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]
) -> _Readings:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = {name: mode.from_tensor(tensor) for name, tensor in tensors.items()}
    with mode:
        return _interpret(train, fakes, [mode.from_tensor(tensor) for tensor in inputs])


def _interpret(
    train: CapturedGraph, tensors: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]
) -> _Readings:
    meter = _Meter(train.graph, tensors)
    for tensor in (*tensors.values(), *inputs):
        meter.ignore(tensor)
    with torch.enable_grad(), meter.counting():
        meter.run(*inputs, enable_io_processing=False)
    return meter.readings


class _Meter(fx.Interpreter):
    """Runs a graph node by node and reads the counters in between."""

    def __init__(self, graph: fx.Graph, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__(nn.Module(), graph=graph)
        self.readings = _Readings()
        self._tensors = tensors
        self._device_type = device_type(tensors.values())
        self._flop_counter = FlopCounterMode(display=False)
        self._saved: dict[int, torch.Tensor] = {}  # by storage; kept so that no address is reused
        self._current = ""

    @contextlib.contextmanager
    def counting(self) -> Any:
        """Counts FLOPs and saved tensors while it is open."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)
        with self._flop_counter, hooks:
            yield

    def ignore(self, tensor: torch.Tensor) -> None:
        """Leaves a tensor out of the saved bytes."""
        if tensor.layout is torch.strided:
            self._saved[tensor.untyped_storage()._cdata] = tensor

    def run_node(self, n: fx.Node) -> Any:
        self._current = n.name
        self.readings.saved_bytes[n.name] = 0
        before = self._flop_counter.get_total_flops()
        with within(self._device_type, autocasts_of(n)):
            value = super().run_node(n)
        readings = self.readings
        readings.flops[n.name] = float(self._flop_counter.get_total_flops() - before)
        readings.written_bytes[n.name] = self._written_bytes(n, value)
        readings.value_bytes[n.name] = (
            value.numel() * value.element_size()
            if isinstance(value, torch.Tensor)
            else _SCALAR_BYTES
        )
        if isinstance(value, torch.Tensor) and value.requires_grad:
            readings.needs_gradient.add(n.name)
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten._grouped_mm.default and args[1].dim() == 3:
            # Each row meets one of the matrices, so one matrix costs the same; torch counts nothing
            # for the operator, and has shapes for bfloat16 only.
            target, args, kwargs = torch.matmul, (args[0], args[1][0]), {}
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._tensors[target]

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._saved:
                self._saved[storage._cdata] = tensor
                self.readings.saved_bytes[self._current] += storage.nbytes()
        return tensor

    def _written_bytes(self, node: fx.Node, value: Any) -> int:
        """Bytes of memory the node made, which a view does not."""
        inputs = {_storage(self.env.get(each)) for each in node.all_input_nodes}
        values = value if isinstance(value, (list, tuple)) else (value,)
        made = {
            storage: each.untyped_storage().nbytes()
            for each in values
            if isinstance(each, torch.Tensor)
            and (storage := _storage(each)) is not None
            and storage not in inputs
        }
        return sum(made.values())


def _storage(value: Any) -> int | None:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return int(value.untyped_storage()._cdata)
    return None


def _cuts(
    train: CapturedGraph, placement: Placement, readings: _Readings, num_positions: int
) -> tuple[Cut, ...]:
    """The legal cuts with the bytes of what lives across them, by a running sum."""
    forward = [0] * (num_positions + 2)
    backward = [0] * (num_positions + 2)
    for node, last in last_uses(train.graph, placement.train, placement.recomputed).items():
        if node.op not in ("placeholder", "call_function"):
            continue
        start, end = placement.train[node] + 1, last + 1
        if start >= end:
            continue
        num_bytes = readings.value_bytes[node.name]
        forward[start] += num_bytes
        forward[end] -= num_bytes
        if node.name in readings.needs_gradient:
            backward[start] += num_bytes
            backward[end] -= num_bytes
    for sums in (forward, backward):
        for position in range(1, num_positions + 2):
            sums[position] += sums[position - 1]
    return tuple(Cut(p, forward[p], backward[p]) for p in placement.legal)
