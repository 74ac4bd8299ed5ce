"""Interprets a train graph forward and backward and notes, position by position, what it costs.

FLOPs come from torch's FlopCounterMode, saved activations from autograd's own saved-tensor hooks,
each storage counted once, at the position that saved it first; temporaries of both passes from the
storages that live while a position's operators run.

The criterion is not in the graph. In its place stands the cross entropy of every output that has
more than one element, at the last position: it keeps a tensor of the output's size and makes two in
its backward pass, which few criteria exceed. A model with an output of one element is taken to
compute its loss itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from ravnest.capture.diagnosis import first_lines
from ravnest.capture.graphs import computing_nodes
from ravnest.capture.regions import autocasts_of, device_type, within
from ravnest.capture.tracking import AutogradPositions, LiveStorages

logger = logging.getLogger(__name__)

_SCALAR_BYTES = 8


@dataclass(slots=True)
class StorageLife:
    """A storage that the graph made.

    Attributes:
        num_bytes: its size.
        created: position that made it.
        saved: position that saved it for backward first, None when none did.
    """

    num_bytes: int
    created: int
    saved: int | None = None


@dataclass(slots=True)
class Readings:
    """What one interpretation found.

    Attributes:
        flops, saved_bytes, written_bytes: per computing node.
        forward_peaks: per computing node the bytes that lived at most while it ran.
        backward_peaks: per computing node the bytes of gradients and temporaries that lived at most
            while its backward ran.
        value_bytes: by name, of every node.
        needs_gradient: names of the values that autograd tracks.
        storages: those the graph made, by number.
        storage_of: number by name of a node whose value is a tensor that the graph made.
        criterion_bytes: kept for backward by the criterion's stand-in, besides `saved_bytes`.
    """

    flops: list[float]
    saved_bytes: list[int]
    written_bytes: list[int]
    forward_peaks: list[int]
    backward_peaks: list[int]
    value_bytes: dict[str, int] = field(default_factory=dict)
    needs_gradient: set[str] = field(default_factory=set)
    storages: dict[int, StorageLife] = field(default_factory=dict)
    storage_of: dict[str, int] = field(default_factory=dict)
    criterion_bytes: int = 0


def read_costs(
    graph: fx.Graph, tensors: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]
) -> Readings:
    """Runs both passes.

    Args:
        graph: a train graph.
        tensors: what it looks up; leaves of autograd, whose gradients are dropped as they come.
        inputs: in the order of the placeholders.
    """
    meter = _Meter(graph, tensors, inputs)
    hooks = torch.autograd.graph.saved_tensors_hooks(meter.save, lambda tensor: tensor)
    with torch.enable_grad(), meter.live, hooks:
        losses = meter.forward(inputs)
        try:
            meter.backward(losses)
        except Exception as error:  # an operator whose backward has no shape rule
            logger.warning(
                "temporaries of the backward pass are estimated, since it cannot be run: %s",
                first_lines(str(error)),
            )
            meter.estimate_backward()
    return meter.readings


class _Meter(fx.Interpreter):
    """Runs a graph node by node and reads the counters in between."""

    def __init__(
        self,
        graph: fx.Graph,
        tensors: Mapping[str, torch.Tensor],
        inputs: Sequence[torch.Tensor],
    ) -> None:
        super().__init__(nn.Module(), graph=graph)
        self._order = {node: i for i, node in enumerate(computing_nodes(graph))}
        num = len(self._order)
        self.readings = Readings([0.0] * num, [0] * num, [0] * num, [0] * num, [0] * num)
        self._is_criterion = False
        self.live = LiveStorages((*tensors.values(), *inputs))
        self._tensors = tensors
        self._device_type = device_type(tensors.values())
        self._flop_counter = FlopCounterMode(display=False)
        self._autograd = AutogradPositions()
        self._saved: list[torch.Tensor] = []  # held, so that backward frees none of them
        self._position = 0
        for tensor in tensors.values():
            if tensor.requires_grad:
                tensor.register_post_accumulate_grad_hook(_drop_gradient)  # type: ignore[no-untyped-call]

    def forward(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs the graph, then the criterion's stand-in; returns where backward starts."""
        self.live.observed = self._note_forward
        with self._flop_counter:
            outputs = self.run(*inputs, enable_io_processing=False)
        self._is_criterion = True
        losses = _losses(outputs)
        self._autograd.made(losses, self._position)
        self._note_forward()
        return losses

    def backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Runs backward; what the forward pass has left is held and does not count."""
        held_bytes = self.live.num_bytes
        peaks = self.readings.backward_peaks

        def note(hidden_bytes: int) -> None:
            position = self._position = self._autograd.current(self._position)
            num_bytes = self.live.num_bytes - held_bytes + hidden_bytes
            peaks[position] = max(peaks[position], num_bytes)

        self.live.observed = note
        if losses:
            torch.autograd.backward(losses)

    def estimate_backward(self) -> None:
        """Twice what the node wrote: the gradients of its value and of its input."""
        readings = self.readings
        readings.backward_peaks[:] = [2 * written for written in readings.written_bytes]

    def _note_forward(self, hidden_bytes: int = 0) -> None:
        peaks, position = self.readings.forward_peaks, self._position
        if peaks:
            peaks[position] = max(peaks[position], self.live.num_bytes + hidden_bytes)

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hook of autograd: a tensor is saved for backward."""
        life = self._life_of(tensor)
        if life is not None and life.saved is None:
            if self._is_criterion:
                self.readings.criterion_bytes += life.num_bytes
            else:
                self.readings.saved_bytes[self._position] += life.num_bytes
            life.saved = self._position
            self._saved.append(tensor.detach())
        return tensor

    def _life_of(self, tensor: torch.Tensor) -> StorageLife | None:
        """The record of a storage that the graph made, begun when it is new."""
        number = self.live.number_of(tensor)
        if number is None or number in self.live.present:
            return None
        storages = self.readings.storages
        if number not in storages:
            num_bytes = tensor.untyped_storage().nbytes()
            storages[number] = StorageLife(num_bytes, self._position)
        return storages[number]

    def run_node(self, n: fx.Node) -> Any:
        readings = self.readings
        position = self._order.get(n)
        if position is None:
            value = super().run_node(n)
        else:
            self._position = position
            before = self._flop_counter.get_total_flops()
            with within(self._device_type, autocasts_of(n)):
                value = super().run_node(n)
            readings.flops[position] = float(self._flop_counter.get_total_flops() - before)
            readings.written_bytes[position] = self._written_bytes(n, value)
            self._autograd.made(value, position)
        readings.value_bytes[n.name] = _SCALAR_BYTES
        if isinstance(value, torch.Tensor):
            readings.value_bytes[n.name] = value.numel() * value.element_size()
            if value.requires_grad:
                readings.needs_gradient.add(n.name)
            if self._life_of(value) is not None:
                number = self.live.number_of(value)
                assert number is not None
                readings.storage_of[n.name] = number
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten._grouped_mm.default and args[1].dim() == 3:
            # Each row meets one of the matrices, so one matrix costs the same; torch counts nothing
            # for the operator, and has shapes for bfloat16 only.
            target, args, kwargs = torch.matmul, (args[0], args[1][0]), {}
        return super().call_function(target, args, kwargs)

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._tensors[target]

    def _written_bytes(self, node: fx.Node, value: Any) -> int:
        """Bytes of memory the node made, which a view does not."""
        number_of = self.live.number_of
        given = (self.env.get(each) for each in node.all_input_nodes)
        inputs = {number_of(each) for each in given if isinstance(each, torch.Tensor)}
        values = value if isinstance(value, (list, tuple)) else (value,)
        made = {
            number: each.untyped_storage().nbytes()
            for each in values
            if isinstance(each, torch.Tensor)
            and (number := number_of(each)) is not None
            and number not in inputs
        }
        return sum(made.values())


def _drop_gradient(tensor: torch.Tensor) -> None:
    tensor.grad = None


def _losses(outputs: Sequence[Any]) -> list[torch.Tensor]:
    """What stands for the criterion's loss, see the module's docstring."""
    tracked = [each for each in outputs if isinstance(each, torch.Tensor) and each.requires_grad]
    own = [each for each in tracked if each.numel() == 1]
    return own or [_loss(each) for each in tracked]


def _loss(output: torch.Tensor) -> torch.Tensor:
    if output.dim() < 2 or output.is_complex():
        return output.abs().sum()
    flat = output.flatten(0, -2)
    targets = torch.zeros(flat.shape[:1], dtype=torch.long, device=flat.device)
    return functional.cross_entropy(flat, targets)
