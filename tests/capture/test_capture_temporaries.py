"""The bytes that live during both passes, by position, against plain PyTorch on real tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ravnest.capture.exporting import capture_model
from ravnest.capture.tracking import LiveStorages


class Wide(nn.Module):
    """The middle makes large values that nothing keeps; a skip lives across it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = torch.tanh(self.first(x))
        wide = skip.repeat(1, 50) * 2.0
        return self.last(wide.sum(1, keepdim=True) + skip)


@pytest.mark.parametrize("run_forward", [False, True])
def test_the_peak_of_the_whole_graph_is_that_of_plain_training(run_forward: bool) -> None:
    model, x = Wide(), torch.randn(32, 8)
    costs = capture_model(model, (x,), run_forward=run_forward).costs

    live = LiveStorages((x, *model.parameters()))
    most = 0

    def note(hidden_bytes: int) -> None:
        nonlocal most
        most = max(most, live.num_bytes + hidden_bytes)

    live.observed = note
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", None))
    with live:
        loss = nn.functional.cross_entropy(model(x), torch.zeros(32, dtype=torch.long))
        loss.backward()
    predicted = max(costs.peak_bytes)
    # At least what really lives; at most the loss, targets and one value more.
    assert most <= predicted + costs.criterion_bytes <= most + 32 * 16 * 4 + 1024
    assert most > 2 * sum(costs.saved_bytes), "the temporaries must be what counts here"


def test_what_crosses_a_cut_is_known_to_be_saved_before_behind_or_not_at_all() -> None:
    model = nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    costs = capture_model(model, (torch.randn(4, 8),)).costs
    value = 4 * 16 * 4
    crossing = {cut.position: (cut.unsaved_bytes, cut.received_bytes) for cut in costs.cuts}
    # Linear's own output is saved by nobody; what tanh and relu return, they save themselves.
    assert crossing == {1: (value, 0), 2: (0, 0), 3: (value, 0), 4: (0, 0)}


def test_a_value_that_the_next_stage_saves_first_is_its_input() -> None:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.first(x) + 1.0)

    costs = capture_model(Doubling(), (torch.randn(4, 8),)).costs
    value = 4 * 16 * 4
    assert [(c.unsaved_bytes, c.received_bytes) for c in costs.cuts] == [(value, 0), (value, value)]


def test_the_criterion_keeps_a_tensor_of_the_size_of_the_output() -> None:
    costs = capture_model(nn.Linear(8, 100), (torch.randn(4, 8),)).costs
    assert 4 * 100 * 4 <= costs.criterion_bytes <= 4 * 100 * 4 + 100
    assert costs.num_samples == 4


def test_storages_are_counted_while_they_live() -> None:
    before = torch.zeros(10)
    live = LiveStorages((before,))
    with live:
        made = torch.zeros(100)
        view = made.view(10, 10) + 0
        before.add_(1)
        assert live.num_bytes == 800
        del made
        assert live.num_bytes == 400
        del view
    assert live.num_bytes == 0
    assert live.number_of(before) in live.present
