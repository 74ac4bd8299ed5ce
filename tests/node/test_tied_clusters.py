"""Shared parameters and averaging between clusters."""

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
    Y,
    adam,
    build,
    criterion,
    decay,
    loader,
    train,
)
from torch.utils.data import DataLoader, TensorDataset

from ravnest import Node, Trainer


def test_clusters_that_are_cut_differently_average_what_owners_hold(tmp_path: Path) -> None:
    """Replicas get the mean too; in between each cluster trains on its own share."""
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=5, clusters=2)
    assert [len(cluster) for cluster in run.plan.clusters] == [3, 2]
    assert {stage.cluster_id for stage in run.plan.stages if stage.replicas} == {0, 1}
    run_cleanly(run, train, reduce_factor=2, **SETTINGS)

    models = [build(), build()]
    optimizers = [adam(model.parameters()) for model in models]
    schedulers = [decay(optimizer) for optimizer in optimizers]
    batches = list(loader())
    for step in range(5):
        for cluster, model in enumerate(models):
            batch = batches[2 * step + cluster]
            criterion(model(batch[0]), batch).backward()
            optimizers[cluster].step()
            optimizers[cluster].zero_grad()
            schedulers[cluster].step()
        if step in (1, 3, 4):  # every second step, and at the end
            for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
                mean = (one.data + other.data) / 2
                one.data.copy_(mean)
                other.data.copy_(mean)
    names = dict(models[0].named_parameters())
    for stage in run.plan.stages:
        for name in (*stage.parameters, *(replica.name for replica in stage.replicas)):
            held = run.results[stage.node_id][name]
            torch.testing.assert_close(held, names[name], atol=1e-6, rtol=0)
            owners = [s for s in run.plan.stages if name in s.parameters]
            assert all(torch.equal(held, run.results[s.node_id][name]) for s in owners)


@pytest.mark.parametrize("schedule", ["1f1b", "async"])
@pytest.mark.parametrize("kind", [TiedGpt, Albert])
def test_rounds_and_replicas_do_not_wait_for_each_other(
    kind: Callable[[], Any], schedule: str, tmp_path: Path
) -> None:
    """Clusters of different length and another number of steps, averaging after every step."""
    run = make_plan(tmp_path, build(kind), (X[:BATCH],), nodes=5, clusters=2)

    def script(node: Node) -> dict[str, torch.Tensor]:
        short = DataLoader(TensorDataset(X[:-BATCH], Y[:-BATCH]), batch_size=BATCH)  # 5 and 4
        Trainer(node, train_loader=short, epochs=2, save=True).train()
        return {**dict(node.model.named_parameters()), **dict(node.model.named_buffers())}

    run_cleanly(run, script, schedule=schedule, update_frequency=2, reduce_factor=1, **SETTINGS)
    holders = [stage for stage in run.plan.stages if stage.replicas]
    assert holders
    for stage in holders:
        for replica in stage.replicas:
            own = run.results[stage.node_id][replica.name]
            for other in run.plan.stages:
                if replica.name in other.parameters:
                    assert torch.equal(own, run.results[other.node_id][replica.name])
