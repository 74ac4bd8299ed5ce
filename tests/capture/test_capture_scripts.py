"""ScriptModules as torch.jit.load gives them, which have no Python code to trace."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
import torch
from capture_chain import assert_same, even_cuts, loss_of, through_files, train_chain
from capture_oracle import assert_stages_equal
from torch import nn

from ravnest.capture.exporting import capture_model
from ravnest.errors import CaptureError, TrainingError

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated", "ignore::torch.jit.TracerWarning")


class Tied(nn.Module):
    """A tied table, a default argument and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(20, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head, self.unused = nn.Linear(8, 20, bias=False), nn.Linear(3, 3)
        self.head.weight = self.embed.weight
        self.out = nn.Linear(20, 4)

    def forward(self, ids: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        h = self.embed(ids)
        h = h + self.layers(h)
        return self.out(torch.tanh(self.head(h))) * scale


class Normed(nn.Module):
    """BatchNorm, which in training loops over sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.norm(self.a(x))))


class Reshaping(Normed):
    """Reads the batch size, which the interpreter bakes in."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.a(x))
        return self.b(h.view(x.size(0), -1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.b = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.rnn(x)[0])


def loaded(script: Any) -> Any:
    """A script as it comes from a file."""
    file = io.BytesIO()
    torch.jit.save(script, file)
    file.seek(0)
    return torch.jit.load(file)


CASES = {
    "tied": (Tied, lambda b: torch.randint(0, 20, (b, 5))),
    "normed": (Normed, lambda b: torch.randn(b, 8)),
    "reshaping": (Reshaping, lambda b: torch.randn(b, 8)),
    "recurrent": (Recurrent, lambda b: torch.randn(b, 5, 8)),
}


@pytest.mark.parametrize("name", CASES)
def test_scripted_module_equals_the_python_model(name: str) -> None:
    make, example = CASES[name]
    torch.manual_seed(0)
    model = make()
    script = loaded(torch.jit.script(model))
    captured = capture_model(script, (example(4),))
    assert captured.state.state_names == tuple(script.state_dict())
    assert captured.model_name == make.__name__
    for num_stages in (1, 2):
        stages = through_files(captured, even_cuts(captured, num_stages))
        assert len(stages) == num_stages
        for batch in (4, 4) if name in ("reshaping", "recurrent") else (4, 3):
            assert_stages_equal(stages, model, (example(batch),))


def test_sizes_a_script_reads_are_fixed_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        captured = capture_model(loaded(torch.jit.script(Reshaping())), (torch.randn(4, 8),))
    assert [r for r in caplog.records if "not for a partial last batch" in r.getMessage()]
    with pytest.raises(TrainingError):
        captured.signature.bind((torch.randn(3, 8),), {})
    captured = capture_model(loaded(torch.jit.script(Tied())), (torch.randint(0, 20, (4, 5)),))
    captured.signature.bind((torch.randint(0, 20, (3, 7)),), {})


def test_traced_module_warns_of_its_mode(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    model = Normed()
    names, parameters = zip(*model.named_parameters(), strict=True)
    script = loaded(torch.jit.trace(model, (x,)))
    with caplog.at_level(logging.WARNING):
        captured = capture_model(script, (x,))
    assert [r for r in caplog.records if "was traced in training mode" in r.message]
    for num_stages in (1, 2):
        stages = through_files(captured, even_cuts(captured, num_stages))
        for batch in (4, 3):
            x = torch.randn(batch, 8)
            output, actual = model(x), train_chain(stages, (x,), {})
            loss = loss_of(output)
            wanted = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
            assert_same(actual.output, output)
            assert_same(actual.gradients, {n: wanted[n] for n in actual.gradients})


def test_nested_script_is_refused() -> None:
    script = torch.jit.script(Normed())
    with pytest.raises(CaptureError, match="submodule '0' of Sequential is a ScriptModule"):
        capture_model(nn.Sequential(script), (torch.randn(4, 8),))


def test_script_that_cannot_be_captured_names_both_ways() -> None:
    class Looping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while bool(x.sum() < 3):
                x = self.a(x) + 1
            return x

    with pytest.raises(CaptureError) as caught:
        capture_model(loaded(torch.jit.script(Looping())), (torch.randn(4, 8),))
    message = str(caught.value)
    assert "run by its interpreter cannot be captured" in message
    assert "pass the Python model" in message


def test_script_is_as_before() -> None:
    script = loaded(torch.jit.script(Normed()))
    before = {name: tensor.clone() for name, tensor in script.state_dict().items()}
    capture_model(script, (torch.randn(4, 8),))
    assert script.training
    assert script.norm.training
    assert all(torch.equal(t, before[n]) for n, t in script.state_dict().items())
    assert all(parameter.grad is None for parameter in script.parameters())
