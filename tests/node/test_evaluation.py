"""Evaluation, validation and prediction, on every role."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import make_plan, run_cleanly
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer, set_seed

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (50,), generator=torch.Generator().manual_seed(1))


class TwoHeads(torch.nn.Module):
    """Takes keywords, returns nested outputs, behaves differently in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(6, 12), torch.nn.BatchNorm1d(12), torch.nn.Tanh()
        )
        self.drop = torch.nn.Dropout(0.5)
        self.head = torch.nn.Linear(12, 3)
        self.size = torch.nn.Linear(12, 1)

    def forward(self, features: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
        x = self.drop(self.body(features * scale))
        return {"logits": self.head(x), "extra": (self.size(x), [x.sum()])}


def build() -> TwoHeads:
    set_seed(0)
    return TwoHeads()


def batches() -> list[dict[str, torch.Tensor]]:
    return [
        {"features": X[i : i + 8], "scale": torch.tensor(1.5), "labels": Y[i : i + 8]}
        for i in range(0, 50, 8)
    ]


EXAMPLE = {"features": X[:8], "scale": torch.tensor(1.5)}


def criterion(predictions: Any, targets: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(predictions["logits"], targets["labels"])


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("shipped", [True, False])
def test_evaluate_equals_the_original_in_eval_mode(
    nodes: int, shipped: bool, tmp_path: Path
) -> None:
    model = build()
    run = make_plan(tmp_path, model, kwargs=EXAMPLE, nodes=nodes)
    run_cleanly(
        run,
        lambda n: Trainer(n, val_loader=batches()).evaluate(),
        criterion=criterion,
        test_labels=None if shipped else batches(),
    )
    model.eval()
    logits = model(X, torch.tensor(1.5))["logits"]
    expected = (logits.argmax(1) == Y).float().mean().item()
    assert len(run.results) == nodes
    for results in run.results.values():
        assert results["num_samples"] == 50
        assert results["accuracy"] == pytest.approx(expected)


def test_another_metric_replaces_accuracy(tmp_path: Path) -> None:
    def mean_error(predictions: Any, targets: Any) -> float:
        return float((predictions["extra"][0].squeeze(1) - targets["labels"]).abs().mean())

    model = build()
    run = make_plan(tmp_path, model, kwargs=EXAMPLE)
    run_cleanly(run, lambda n: Trainer(n, val_loader=batches(), metric=mean_error).evaluate())
    model.eval()
    sizes = model(X, torch.tensor(1.5))["extra"][0].squeeze(1)
    expected = (sizes - Y).abs().mean().item()
    assert run.result_of(0)["mean_error"] == pytest.approx(expected)
    assert run.result_of(2) == run.result_of(0)


@pytest.mark.parametrize("nodes", [1, 3])
def test_pred_returns_the_nested_output_on_the_root(nodes: int, tmp_path: Path) -> None:
    model = build()
    run = make_plan(tmp_path, model, kwargs=EXAMPLE, nodes=nodes)
    data = {"features": X[:5], "scale": torch.tensor(2.0)}
    run_cleanly(run, lambda n: Trainer(n).pred(data))
    model.eval()
    expected = model(**data)
    output = run.result_of(0)
    assert isinstance(output, dict)
    torch.testing.assert_close(output["logits"], expected["logits"])
    torch.testing.assert_close(output["extra"][0], expected["extra"][0])
    torch.testing.assert_close(output["extra"][1][0], expected["extra"][1][0])
    assert all(run.result_of(stage) is None for stage in range(1, nodes))


def test_validation_in_training_and_evaluation_after_it(tmp_path: Path) -> None:
    """In training mode dropout is on, in validation off; weights are those of a step."""

    def script(node: Node) -> Any:
        trainer = Trainer(
            node,
            train_loader=batches(),
            val_loader=batches(),
            epochs=3,
            val_freq=2,
        )
        trainer.train()
        return trainer.evaluate(), trainer.evaluate()

    run = make_plan(tmp_path, build(), kwargs=EXAMPLE)
    run_cleanly(
        run,
        script,
        criterion=criterion,
        optimizer=torch.optim.Adam,
        optimizer_params={"lr": 0.01},
    )
    assert len((tmp_path / "val_accuracies.txt").read_text().split()) == 1
    first, second = run.result_of(0)
    assert first == second
    assert run.result_of(2) == (first, second)


def test_a_loader_of_pairs_and_inputs_dtype(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    run = make_plan(tmp_path, model, (X[:4],), nodes=2)
    data = DataLoader(TensorDataset(X.double(), Y), batch_size=16)
    run_cleanly(run, lambda n: Trainer(n, val_loader=data, inputs_dtype=torch.float32).evaluate())
    expected = (model(X).argmax(1) == Y).float().mean().item()
    assert run.result_of(0)["accuracy"] == pytest.approx(expected)
