"""What cannot be captured is refused with place, reason and advice; the model stays as it was."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ravnest.capture.exporting import capture_model
from ravnest.errors import CaptureError, TrainingError


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 3 * gradient


TRIPLED = Tripled.apply


def tripled(x: torch.Tensor) -> torch.Tensor:
    return Tripled.apply(x)


class Inner(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class Outer(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(8, 8), Inner(function)

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(self.linear(x))


def hooked(x: torch.Tensor) -> torch.Tensor:
    x = x * 1.0
    x.register_hook(lambda gradient: gradient * 2)
    return x


def branching(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


CASES: dict[str, tuple[Callable[[torch.Tensor], Any], list[str]]] = {
    "autograd_function": (tripled, ["Tripled", "autograd function", "hint"]),
    "bound_autograd_function": (TRIPLED, ["Tripled", "autograd function"]),
    "reentrant_checkpoint": (
        lambda x: checkpoint(torch.tanh, x, use_reentrant=True),
        ["CheckpointFunction", "use_reentrant=False"],
    ),
    "data_dependent": (branching, ["'inner'", "test_capture_refusals.py:", "torch.where"]),
    "numpy": (lambda x: torch.from_numpy(x.detach().numpy()), ["numpy", "'inner'"]),
    "cond": (
        lambda x: torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,)),
        ["cond", "torch.where"],
    ),
    "hook": (hooked, ["register_hook"]),
    "object_output": (lambda x: (x, object()), ["output 1", "object", "use_cache"]),
    "no_tensor_output": (lambda x: 3, ["returns no tensor"]),
    "forbidden_operator": (
        lambda x: torch.ops.aten._unsafe_index.Tensor(x, [torch.tensor([0])]),
        ["aten._unsafe_index.Tensor", "'inner'", "test_capture_refusals.py"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_refusal_says_what_where_and_what_to_do(name: str) -> None:
    function, words = CASES[name]
    model = Outer(function)
    with pytest.raises(CaptureError) as caught:
        capture_model(model, (torch.randn(4, 8),))
    message = str(caught.value)
    for word in words:
        assert word in message, message
    assert len(message) < 1000
    assert model.training
    assert model.inner.training


def test_a_torch_error_is_chained_and_shortened() -> None:
    with pytest.raises(CaptureError) as caught:
        capture_model(Outer(branching), (torch.randn(4, 8),))
    assert caught.value.__cause__ is not None
    assert "TORCH_LOGS" not in str(caught.value)


def test_torch_does_not_print_its_graph_but_the_model_may_print(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def talking(x: torch.Tensor) -> torch.Tensor:
        print("so says the model", file=sys.stderr)
        return branching(x)

    with pytest.raises(CaptureError):
        capture_model(Outer(talking), (torch.randn(4, 8),))
    said = capsys.readouterr().err.splitlines()
    assert set(said) == {"so says the model"}


def test_model_without_parameters() -> None:
    with pytest.raises(CaptureError, match="no parameters"):
        capture_model(nn.ReLU(), (torch.randn(4, 8),))


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_script_module() -> None:
    scripted = torch.jit.trace(nn.Linear(8, 8), torch.randn(2, 8))
    with pytest.raises(CaptureError, match="ScriptModule"):
        capture_model(nn.Sequential(scripted), (torch.randn(4, 8),))


def test_lazy_module() -> None:
    with pytest.raises(CaptureError, match=r"0\.weight has no shape yet"):
        capture_model(nn.Sequential(nn.LazyLinear(4)), (torch.randn(4, 8),))


def test_backward_hook() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    model[0].register_full_backward_hook(lambda *_: None)
    with pytest.raises(CaptureError, match="module '0' has a backward hook"):
        capture_model(model, (torch.randn(4, 8),))


def test_example_that_does_not_fit() -> None:
    with pytest.raises(CaptureError, match="does not fit"):
        capture_model(nn.Linear(8, 8), (), {"wrong": torch.randn(4, 8)})
    with pytest.raises(CaptureError, match="neither tensor nor plain value"):
        capture_model(Outer(torch.tanh), (object(),))
    with pytest.raises(CaptureError, match="no tensor"):
        capture_model(Outer(torch.tanh), (3,))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(9, 8), nn.BatchNorm1d(8)

    def forward(self, ids: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.norm(self.embed(ids).mean(1)) * scale


@pytest.mark.parametrize(
    ("model", "example", "words"),
    [
        (
            Outer(torch.tanh),
            torch.randn(4, 9),
            ["'linear' (Linear)", "Outer.forward(x:", "x float32 [4, 9]", "4x9 and 8x8"],
        ),
        (Words(), torch.randn(4, 3), ["'embed'", "ids float32 [4, 3]", "FloatTensor", "scale"]),
        (Words(), torch.randint(0, 9, (4,)), ["'norm'", "ids int64 [4]"]),
    ],
)
def test_example_that_the_model_refuses(
    model: nn.Module, example: torch.Tensor, words: list[str]
) -> None:
    with pytest.raises(CaptureError) as caught:
        capture_model(model, (example,))
    message = str(caught.value)
    assert "does not fit" in message
    for word in (*words, "test_capture_refusals.py:"):
        assert word in message, message
    assert len(message) < 600
    assert "tried" not in message
    assert not any(buffer.any() for buffer in model.buffers() if buffer.dim() == 0)


def test_capture_leaves_model_and_generators_alone() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.net(x) * random.choice([1.0])

    model = Stateful()
    model.net[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    flags = [module.training for module in model.modules()]
    torch_state, python_state = torch.get_rng_state(), random.getstate()
    for run_forward in (False, True):
        captured = capture_model(model, (torch.randn(4, 8),), run_forward=run_forward)
        torch.set_rng_state(torch_state)
    assert model.calls == 0
    assert [module.training for module in model.modules()] == flags
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert random.getstate() == python_state
    targets = [str(node.target) for node in captured.train.computing]
    assert "aten.add_.Tensor" not in targets  # the frozen BatchNorm counts no batches


def test_random_state_survives_a_capture() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), torch.randn(4, 8)
    state = torch.get_rng_state()
    capture_model(model, (x,), run_forward=True)
    assert torch.equal(torch.get_rng_state(), state)


def test_model_in_eval_mode_is_captured_in_train_mode_and_stays_in_eval() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval()
    captured = capture_model(model, (torch.randn(4, 8),))
    dropout = captured.train.computing[-1]
    assert dropout.args[1:] == (0.5, True)
    assert not any(module.training for module in model.modules())


def test_static_fallback_warns_with_its_consequence(caplog: pytest.LogCaptureFixture) -> None:
    class Sensitive(nn.Module):
        """Traces only where every size is a plain int."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if type(x.shape[0]) is not int:
                raise RuntimeError("sizes must be plain")
            return self.linear(x)

    with caplog.at_level(logging.WARNING):
        captured = capture_model(Sensitive(), (torch.randn(4, 8),))
    assert len([r for r in caplog.records if "also a partial last one" in r.message]) == 2
    with pytest.raises(TrainingError, match=r"expected torch.float32 of shape \[4, 8\]"):
        captured.signature.bind((torch.randn(3, 8),), {})


def test_lost_attribute_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.linear(x)
            return self.last

    with caplog.at_level(logging.WARNING):
        capture_model(Remembering(), (torch.randn(4, 8),))
    assert [r.message for r in caplog.records if "attributes last," in r.message]
