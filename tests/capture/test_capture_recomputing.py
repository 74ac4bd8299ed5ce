"""What later stages compute again instead of receiving it, and what they must not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from capture_zoo import CASES, captured
from torch import nn

from ravnest.capture.exporting import CapturedModel, capture_model
from ravnest.capture.recomputing import last_uses
from ravnest.capture.splitting import split

LENGTH = 24


def crossing(model: CapturedModel, mode: str) -> list[torch.Tensor]:
    """The traced tensors that cross the cut before the second layer."""
    second = next(c.position for c in model.costs.stored if c.name == "layers.1.weight")
    cut = next(cut.position for cut in model.costs.cuts if cut.position >= second)
    graph = getattr(model, mode).graph
    values = {n.target if n.op == "placeholder" else n.name: n.meta.get("val") for n in graph.nodes}
    outputs = getattr(split(model, [cut])[0], mode).outputs
    return [values[spec.name] for spec in outputs if spec.is_tensor]


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_masks_tables_and_distances_are_not_sent(mode: str) -> None:
    for tensor in crossing(captured("rotary"), mode):
        sizes = [s if isinstance(s, int) else s.node.hint for s in tensor.shape]
        # Of the mask only the padding, a number per token; hidden states and what layers make.
        is_padding = tensor.dtype is torch.bool and math.prod(sizes) == 4 * LENGTH
        assert is_padding or (tensor.dtype.is_floating_point and sizes[:2] == [4, LENGTH])


@pytest.mark.parametrize("name", CASES)
def test_no_cut_gets_wider(name: str) -> None:
    model = captured(name)
    before = last_uses(model.train.graph, model.placement.train, frozenset())
    after = last_uses(model.train.graph, model.placement.train, model.placement.recomputed)
    narrower = 0
    for cut in model.costs.cuts:
        widths = [
            sum(
                _num_bytes(node)
                for node, last in uses.items()
                if node.op != "get_attr" and model.placement.train[node] < cut.position <= last
            )
            for uses in (before, after)
        ]
        assert widths[1] == cut.forward_bytes <= widths[0]
        narrower += widths[1] < widths[0]
    assert narrower or name != "rotary"


def _num_bytes(node: torch.fx.Node) -> int:
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return 8
    numel = value.numel()
    return value.element_size() * (numel if isinstance(numel, int) else numel.node.hint)


class Masked(nn.Module):
    """Adds to every layer a square that `make` computes once from the ids."""

    def __init__(self, make: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.slope = nn.Parameter(torch.ones(1))
        self.square = nn.Parameter(torch.ones(LENGTH, LENGTH), requires_grad=False)
        self.make = make

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        square = self.make(self, ids)
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden + square @ hidden)
        return hidden


def distance(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    place = torch.arange(LENGTH).float()
    return (place[:, None] - place[None]).abs()


def written_in_place(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return distance(model, ids).clone().mul_(2)


MAKERS: dict[str, tuple[Callable[[nn.Module, torch.Tensor], torch.Tensor], bool]] = {
    "from nothing but positions": (distance, True),
    "random": (lambda m, ids: torch.rand(LENGTH, LENGTH), False),
    "with a gradient": (lambda m, ids: distance(m, ids) * m.slope, False),
    "written in place": (written_in_place, False),
    "out of a frozen parameter": (lambda m, ids: m.square * 2, False),
    "a large product": (lambda m, ids: distance(m, ids) @ distance(m, ids), False),
}


@pytest.mark.parametrize("name", MAKERS)
def test_only_what_is_cheap_and_always_the_same_is_recomputed(name: str) -> None:
    make, is_recomputed = MAKERS[name]
    model = capture_model(Masked(make), (torch.randint(0, 20, (4, LENGTH)),))
    squares = [t for t in crossing(model, "train") if tuple(t.shape) == (LENGTH, LENGTH)]
    assert bool(squares) is not is_recomputed
