"""`compression="auto"`: every node does on its links what the plan has chosen, and records it."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import torch
from node_harness import Run, run_cleanly

from ravnest import Node, Trainer, clusterize
from ravnest.plan.files import load_plan
from ravnest.plan.prediction import Traffic
from ravnest.wire.compression import COMPRESSIONS

WIDTH, SAMPLES = 64, 32


def plan(folder: Path, bandwidths: tuple[float, ...], **options: Any) -> Run:
    """Three equal nodes but for their links, which matter because computing is quick."""
    node_data = folder / "node_data"
    node_data.mkdir()
    entries = {
        str(node): {
            "IP": f"127.0.0.1:{9000 + node}",
            "benchmarks": {"ram": 4, "bandwidth": bandwidth, "flops": 1.0, "latency": 0.1},
        }
        for node, bandwidth in enumerate(bandwidths)
    }
    (node_data / "node_configs.json").write_text(json.dumps(entries))
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)))
    with contextlib.redirect_stdout(io.StringIO()):
        made = clusterize(
            model, (torch.rand(SAMPLES, WIDTH),), node_data=node_data, num_clusters=1, **options
        )
    return Run(folder, made)


def train(node: Node) -> None:
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.rand(4 * SAMPLES, WIDTH), torch.rand(4 * SAMPLES, WIDTH)
    )
    loader = torch.utils.data.DataLoader(data, batch_size=SAMPLES)
    Trainer(node=node, train_loader=loader).train()


def recorded(run: Run) -> dict[tuple[int, int], str]:
    return {
        (stage.node_id, event["peer"]): event["codec"]
        for stage in run.plan.stages
        for event in run.events(stage.node_id, "compression")
    }


def test_links_get_what_the_plan_has_chosen(tmp_path: Path) -> None:
    run = plan(tmp_path, (1.0, 3.0, 3.0), compression="auto")
    assert run.plan.prediction is not None
    chosen = run.plan.prediction.compressions
    assert sorted(each.compression for each in chosen) == ["fp16", "int8"]
    assert load_plan(tmp_path / "node_data") == run.plan
    run_cleanly(
        run,
        train,
        compression="auto",
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 0.1},
        criterion=lambda y, targets: torch.nn.functional.mse_loss(y, targets[1]),
    )
    expected = {}
    for each in chosen:
        codecs = COMPRESSIONS[each.compression]
        expected[each.source, each.target] = codecs.activation.name
        expected[each.target, each.source] = codecs.gradient.name
    assert recorded(run) == expected
    (event, *_) = run.events(run.plan.clusters[0][0], "compression")
    assert event["reason"] == chosen[0].reason


def test_fast_links_are_left_alone_and_the_prediction_says_so(tmp_path: Path) -> None:
    run = plan(tmp_path, (10_000.0,) * 3, compression="auto")
    assert run.plan.prediction is not None
    assert {each.compression for each in run.plan.prediction.compressions} == {"none"}
    sent = [ln for ln in run.plan.prediction.links if ln.traffic is Traffic.ACTIVATIONS]
    assert {each.num_bytes for each in sent} == {4 * WIDTH * SAMPLES}


def test_a_plan_made_without_it_has_the_choice_too(tmp_path: Path) -> None:
    run = plan(tmp_path, (1.0, 1.0, 1.0))
    assert run.plan.prediction is not None
    assert run.plan.prediction.run.compression == "none"
    assert {each.compression for each in run.plan.prediction.compressions} <= {"fp16", "int8"}
    sent = [ln for ln in run.plan.prediction.links if ln.traffic is Traffic.ACTIVATIONS]
    assert {each.num_bytes for each in sent} == {4 * WIDTH * SAMPLES}
