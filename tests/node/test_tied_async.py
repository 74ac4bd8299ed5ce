"""Which version of a shared parameter each pass uses, in training and in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from node_harness import make_plan, run_cleanly
from tied_harness import (
    BATCH,
    SETTINGS,
    Albert,
    TiedGpt,
    X,
    assert_equal,
    async_reference,
    build,
    loader,
    reference,
    train,
)

from ravnest import Node, Trainer


@pytest.mark.parametrize("kind", [TiedGpt, Albert])
@pytest.mark.parametrize(("nodes", "frequency"), [(2, 1), (3, 3), (4, 1), (4, 3)])
def test_async_uses_the_owners_version_everywhere(
    kind: Callable[[], Any], nodes: int, frequency: int, tmp_path: Path
) -> None:
    run = make_plan(tmp_path, build(kind), (X[:BATCH],), nodes=nodes)
    most: dict[int, int] = {}

    def script(node: Node) -> dict[str, torch.Tensor]:
        replicas = node._parts.engine.replicas
        overwrite = replicas.overwrite

        def counting(values: Any) -> None:
            overwrite(values)
            most[node.plan.stage] = max(most.get(node.plan.stage, 0), replicas.num_stashed)

        replicas.overwrite = counting  # type: ignore[method-assign]
        held = train(node)
        assert replicas.num_stashed == 0
        return held

    run_cleanly(run, script, schedule="async", update_frequency=frequency, **SETTINGS)
    assert_equal(run, async_reference(run, frequency, kind))
    assert most, "no replica was ever updated"
    assert all(number <= nodes - stage - 1 for stage, number in most.items())


@pytest.mark.parametrize("schedule", ["1f1b", "async"])
def test_evaluation_between_batches_uses_the_newest_values(schedule: str, tmp_path: Path) -> None:
    """And leaves training as it would be without."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=3)
    outputs: list[tuple[torch.Tensor, torch.Tensor]] = []

    class Evaluating(Trainer):
        def train(self) -> None:
            self.prelim_checks()
            node = self.node
            for number, batch in enumerate(self.train_loader):
                node.forward_compute(batch[0])
                if number == 5:
                    one = node.no_grad_forward_compute(X[:BATCH])
                    outputs.append((one, node.no_grad_forward_compute(X[:BATCH])))
            node.wait_for_backwards()
            outputs.append((node.no_grad_forward_compute(X[:BATCH]), torch.tensor(0.0)))
            node.trigger_save_submodel()

    def script(node: Node) -> dict[str, torch.Tensor]:
        Evaluating(node, train_loader=loader()).train()
        return {**dict(node.model.named_parameters()), **dict(node.model.named_buffers())}

    run_cleanly(run, script, schedule=schedule, update_frequency=2, **SETTINGS)
    expected = (
        reference(2, epochs=1)
        if schedule == "1f1b"
        else async_reference(run, frequency=2, kind=TiedGpt)
    )
    assert_equal(run, expected)
    assert torch.equal(*outputs[0])
    with torch.no_grad():
        torch.testing.assert_close(outputs[1][0], expected(X[:BATCH]), atol=1e-5, rtol=0)
