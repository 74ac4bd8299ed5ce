"""What the train graph costs, position by position and cut by cut, on fake tensors or real ones."""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ravnest.capture.costs import Cut, GraphCosts, ParameterCost
from ravnest.capture.cuts import Placement
from ravnest.capture.diagnosis import first_lines
from ravnest.capture.graphs import CapturedGraph
from ravnest.capture.metering import Readings, read_costs
from ravnest.capture.recomputing import last_uses
from ravnest.capture.state import StateInventory, StoredTensor
from ravnest.errors import CaptureError

logger = logging.getLogger(__name__)


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
    stored = tuple(
        ParameterCost(
            each.name,
            each.num_bytes,
            each.trainable,
            each.is_parameter,
            placement.owners[each.name],
            _shared_uses(each, placement),
            _averaged_bytes(each.tensor),
        )
        for each in state.stored.values()
    )
    costs = GraphCosts(
        forward_flops=tuple(readings.flops),
        saved_bytes=tuple(readings.saved_bytes),
        output_bytes=tuple(readings.written_bytes),
        peak_bytes=tuple(_peaks(readings)),
        criterion_bytes=readings.criterion_bytes,
        stored=stored,
        cuts=_cuts(train, placement, readings, len(readings.flops)),
        input_bytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs),
        num_samples=next((len(each) for each in inputs if each.dim()), 1),
    )
    return costs, frozenset(readings.needs_gradient)


def _averaged_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a copy that a mean or a maximum is computed in."""
    if tensor.is_complex():
        return tensor.numel() * max(8, tensor.element_size())
    return tensor.numel() * max(4 if tensor.is_floating_point() else 8, tensor.element_size())


def _shared_uses(each: StoredTensor, placement: Placement) -> tuple[int, ...]:
    is_shared = each.name in placement.shared and len(placement.uses[each.name]) > 1
    return placement.uses[each.name] if is_shared else ()


def _read(
    train: CapturedGraph,
    state: StateInventory,
    inputs: Sequence[torch.Tensor],
    run_forward: bool,
) -> Readings:
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
            return read_costs(train.graph, _leaves(own), [tensor.clone() for tensor in inputs])
    except Exception as error:
        raise CaptureError(
            f"the captured train graph cannot be run on the example: {first_lines(str(error))}",
            hint="check that the example fits the model in train mode",
        ) from error


def _looked_up(graph: CapturedGraph) -> set[str]:
    return {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}


def _interpret_fake(
    train: CapturedGraph, tensors: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor]
) -> Readings:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fakes = {name: mode.from_tensor(tensor) for name, tensor in tensors.items()}
    with mode:
        return read_costs(
            train.graph, _leaves(fakes), [mode.from_tensor(tensor) for tensor in inputs]
        )


def _leaves(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same memory as leaves of autograd of their own, which get hooks and gradients."""
    return {
        name: tensor.detach().requires_grad_(tensor.requires_grad)
        for name, tensor in tensors.items()
    }


def _peaks(readings: Readings) -> Iterator[int]:
    """The most that lives while a position runs, in either pass: see `GraphCosts.peak_bytes`."""
    forward_peaks = list(readings.forward_peaks)
    if forward_peaks:
        forward_peaks[-1] -= readings.criterion_bytes
    for saved, forward, backward in zip(
        itertools.accumulate(readings.saved_bytes),
        forward_peaks,
        readings.backward_peaks,
        strict=True,
    ):
        yield max(forward, saved + backward)


class _Sums:
    """Numbers added to ranges of positions; read once all are added."""

    def __init__(self, num_positions: int) -> None:
        self._changes = [0] * (num_positions + 2)

    def add(self, start: int, end: int, number: int) -> None:
        """Adds to the positions from `start` to before `end`; to none when that is not after."""
        if start < end:
            self._changes[start] += number
            self._changes[end] -= number

    def totals(self) -> list[int]:
        """The sum at every position."""
        return list(itertools.accumulate(self._changes))


def _cuts(
    train: CapturedGraph, placement: Placement, readings: Readings, num_positions: int
) -> tuple[Cut, ...]:
    """The legal cuts with the bytes of what lives across them."""
    forward, backward, unsaved = (_Sums(num_positions) for _ in range(3))
    last_use: dict[int, int] = {}  # of storages
    for node, last in last_uses(train.graph, placement.train, placement.recomputed).items():
        if node.op not in ("placeholder", "call_function"):
            continue
        start, end = placement.train[node] + 1, last + 1
        num_bytes = readings.value_bytes[node.name]
        forward.add(start, end, num_bytes)
        if node.name in readings.needs_gradient:
            backward.add(start, end, num_bytes)
        if start < end and (number := readings.storage_of.get(node.name)) is not None:
            last_use[number] = max(end - 1, last_use.get(number, 0))
    received: dict[int, int] = {}
    for number, last in last_use.items():
        life = readings.storages[number]
        saved = num_positions if life.saved is None else life.saved
        unsaved.add(life.created + 1, min(last, saved) + 1, life.num_bytes)
        # Of the cuts it crosses, the last one before it is saved has it counted on its far side.
        at = bisect.bisect_right(placement.legal, saved) - 1
        if life.saved is not None and at >= 0 and life.created < placement.legal[at] <= last:
            cut = placement.legal[at]
            received[cut] = received.get(cut, 0) + life.num_bytes
    sums = (forward.totals(), backward.totals(), unsaved.totals())
    return tuple(
        Cut(p, sums[0][p], sums[1][p], sums[2][p], received.get(p, 0)) for p in placement.legal
    )
