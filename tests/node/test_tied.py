"""Parameters that several stages use, trained over the in-memory transport."""

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
    Frozen,
    OnlyEval,
    TiedGpt,
    X,
    assert_equal,
    build,
    loader,
    reference,
    train,
)

from ravnest import Node, Trainer


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
@pytest.mark.parametrize("frequency", [1, 3])
def test_1f1b_equals_plain_training(nodes: int, frequency: int, tmp_path: Path) -> None:
    """10 batches per epoch: with 3 of them a step, the last group of an epoch is incomplete."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=nodes)
    assert len([stage for stage in run.plan.stages if stage.replicas]) == (nodes > 1)
    run_cleanly(run, lambda n: train(n, epochs=2), update_frequency=frequency, **SETTINGS)
    assert_equal(run, reference(frequency, epochs=2))


@pytest.mark.parametrize(
    "kind",
    [
        lambda: TiedGpt(("owner",)),
        lambda: TiedGpt(("holder",)),
        lambda: TiedGpt(("owner", "holder")),
        Frozen,
        OnlyEval,
        Albert,
    ],
    ids=["owner-detached", "holder-detached", "both-detached", "frozen", "only-eval", "albert"],
)
def test_every_kind_of_sharing_equals_plain_training(
    kind: Callable[[], Any], tmp_path: Path
) -> None:
    """An absent gradient stays absent: AdamW then leaves the parameter as it is."""
    run = make_plan(tmp_path, build(kind), (X[:BATCH],), nodes=3)
    replicas = {replica for stage in run.plan.stages for replica in stage.replicas}
    assert bool(replicas) == (kind is not Frozen)
    if kind is Albert:
        assert [bool(stage.replicas) for stage in run.plan.stages] == [False, True, True]

    def script(node: Node) -> dict[str, torch.Tensor]:
        held = train(node)
        trainer = Trainer(node, train_loader=loader())
        predicted = trainer.pred(X[:BATCH])
        return {**held, "predicted": predicted} if node.node_type == "root" else held

    run_cleanly(run, script, update_frequency=3, **SETTINGS)
    expected = reference(3, epochs=1, kind=kind)
    assert_equal(run, expected)
    with torch.no_grad():
        output = expected.eval()(X[:BATCH])
    torch.testing.assert_close(run.result_of(0)["predicted"], output, atol=1e-5, rtol=0)


def test_replicas_start_with_the_owners_values(tmp_path: Path) -> None:
    """Whatever the owner's script was given or did: here it doubles the embedding."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=2)

    def script(node: Node) -> Any:
        if node.node_type == "root":
            node.model.get_parameter("wte.weight").data.mul_(2.0)
        return Trainer(node, train_loader=loader()).pred(X[:BATCH])

    run_cleanly(run, script)
    expected = build()
    expected.get_parameter("wte.weight").data.mul_(2.0)
    with torch.no_grad():
        torch.testing.assert_close(run.result_of(0), expected(X[:BATCH]), atol=1e-6, rtol=0)


def test_given_weights_reach_copies_of_frozen_parameters(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(Frozen), (X[:BATCH],), nodes=2)
    assert not any(stage.replicas for stage in run.plan.stages)
    torch.manual_seed(1)
    other = Frozen()
    run_cleanly(run, lambda n: Trainer(n, train_loader=loader()).pred(X[:BATCH]), model=other)
    with torch.no_grad():
        torch.testing.assert_close(run.result_of(0), other(X[:BATCH]), atol=1e-6, rtol=0)
