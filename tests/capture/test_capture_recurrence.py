"""Recurrent networks keep an open sequence length, and tracing leaves torch's own rules alone."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from capture_chain import assert_same, even_cuts, through_files, train_chain, train_original
from torch import nn

from ravnest.capture.exporting import capture_model
from ravnest.capture.recurrence import rolled_recurrence

NETWORKS = {
    "lstm": lambda: nn.LSTM(8, 6, num_layers=2, batch_first=True),
    "lstm_projected": lambda: nn.LSTM(8, 6, proj_size=4, bidirectional=True),
    "gru": lambda: nn.GRU(8, 6, batch_first=True, bidirectional=True),
    "rnn_tanh": lambda: nn.RNN(8, 6, num_layers=2),
    "rnn_relu": lambda: nn.RNN(8, 6, nonlinearity="relu"),
}


class Recurrent(nn.Module):
    """The network's input wants a gradient, which is when torch unrolls it to find shapes."""

    def __init__(self, network: nn.RNNBase) -> None:
        super().__init__()
        self.embedding, self.network = nn.Embedding(9, 8), network

    def forward(self, ids: torch.Tensor) -> tuple[Any, ...]:
        output, hidden = self.network(self.embedding(ids))
        return torch.tanh(output), hidden


@pytest.mark.parametrize("name", NETWORKS)
def test_another_sequence_length_equals_the_model(name: str) -> None:
    torch.manual_seed(0)
    model = Recurrent(NETWORKS[name]())
    captured = capture_model(model, (torch.randint(0, 9, (4, 6)),))
    stages = through_files(captured, even_cuts(captured, 2))
    for shape in ((4, 6), (3, 11), (5, 1)):
        ids = torch.randint(0, 9, shape)
        actual, expected = (
            train_chain(stages, (ids,), {}),
            train_original(model, captured, (ids,), {}),
        )
        assert_same(actual.output, expected.output)
        assert_same(actual.gradients, {n: expected.gradients[n] for n in actual.gradients})


def test_torchs_own_rules_are_back_after_an_error() -> None:
    operator = torch.ops.aten.lstm.input
    before = dict(operator.py_kernels)
    with suppress(KeyError), rolled_recurrence():
        assert dict(operator.py_kernels) != before
        raise KeyError
    assert dict(operator.py_kernels) == before
