"""One run of the communication benchmark: two clusters of one node each, as threads."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.convergence.tasks import NUM_HEADS, TASKS, WIDTH, Embedding
from benchmarks.transformer import Block
from ravnest import Node, Trainer, clusterize
from ravnest.transport.memory import MemoryNetwork

NUM_CLUSTERS = 2
NUM_BLOCKS = 2  # of the task's six: three times as many steps in the same time
WARM_UP_SHARE = 0.05
LAST_RATE = 0.02


@dataclass(frozen=True)
class Setting:
    """How the clusters average; as the options of `Node`."""

    name: str
    reduce_factor: int
    outer_optimizer: str | None = None
    averaging_compression: bool | str = False
    outer_params: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run ended with.

    Attributes:
        loss: on held-out text, with the weights that all clusters end with.
        sent_bytes: by one node in all its rounds, frames included.
    """

    loss: float
    sent_bytes: int
    num_rounds: int
    processor_s: float
    wall_s: float


def train(setting: Setting, rate: float, seed: int, num_steps: int) -> Outcome:
    """Trains for so many steps of each cluster, warmed up and decayed by a cosine."""
    task = TASKS["text"]()
    batches = list(itertools.islice(task.batches(1000 + seed), num_steps * NUM_CLUSTERS))
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    size = len(batches[0][0])
    model = build(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _plan(folder, model, x[:size])
        arguments = {
            "node_data": folder / "node_data",
            "trained": folder / "trained",
            "events": folder / "events",
            "loss_filename": folder / "losses.txt",
            "val_filename": folder / "accuracies.txt",
            "criterion": lambda predictions, targets: task.loss(predictions, targets[1]),
            "optimizer": torch.optim.AdamW,
            "optimizer_params": {"lr": rate, "weight_decay": 0.01, "fused": True},
            "lr_scheduler": torch.optim.lr_scheduler.LambdaLR,
            "lr_scheduler_params": {"lr_lambda": lambda step: _share(step, num_steps)},
            "lr_step_on_epoch_change": False,
            "reduce_factor": setting.reduce_factor,
            "outer_optimizer": setting.outer_optimizer,
            "outer_optimizer_params": setting.outer_params,
            "averaging_compression": setting.averaging_compression,
        }
        before_s, before_cpu_s = time.perf_counter(), time.process_time()
        states = _run_nodes(arguments, TensorDataset(x, y), size)
        wall_s, processor_s = time.perf_counter() - before_s, time.process_time() - before_cpu_s
        rounds = _rounds(folder / "events" / "node_0.jsonl")
    if any(not torch.equal(states[0][name], states[1][name]) for name in states[0]):
        raise RuntimeError("the clusters ended with different weights")
    model.load_state_dict(states[0])
    model.eval()
    with torch.no_grad():
        loss = task.loss(model(task.held_out[0]), task.held_out[1]).item()
    sent_bytes = sum(each["sent_bytes"] for each in rounds)
    return Outcome(loss, sent_bytes, len(rounds), processor_s, wall_s)


def build(seed: int) -> torch.nn.Sequential:
    """The task's GPT with fewer blocks."""
    vocabulary = TASKS["text"]().build(seed)[0].token.num_embeddings
    torch.manual_seed(seed)
    head = torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, vocabulary))
    blocks = [Block(WIDTH, NUM_HEADS) for _ in range(NUM_BLOCKS)]
    return torch.nn.Sequential(Embedding(vocabulary), *blocks, head)


def _plan(folder: Path, model: torch.nn.Module, example: torch.Tensor) -> None:
    (folder / "node_data").mkdir()
    nodes = {
        str(node): {"IP": f"127.0.0.1:{9000 + node}", "benchmarks": {"ram": 4, "bandwidth": 100}}
        for node in range(NUM_CLUSTERS)
    }
    (folder / "node_data" / "node_configs.json").write_text(json.dumps(nodes))
    with contextlib.redirect_stdout(io.StringIO()):
        clusterize(
            model, (example,), node_data=folder / "node_data", num_clusters=NUM_CLUSTERS,
            self_test=False,
        )  # fmt: skip


def _run_nodes(
    arguments: dict[str, Any], data: TensorDataset, batch_size: int
) -> list[dict[str, torch.Tensor]]:
    network = MemoryNetwork()
    states: dict[int, dict[str, torch.Tensor]] = {}
    errors: list[BaseException] = []

    def work(node_id: int) -> None:
        try:
            transport = network.transport(node_id)
            with Node(f"node_{node_id}", transport=transport, **arguments) as node:
                Trainer(node, train_loader=DataLoader(data, batch_size=batch_size)).train()
                states[node_id] = {k: v.clone() for k, v in node.model.state_dict().items()}
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(node,)) for node in range(NUM_CLUSTERS)]
    with contextlib.redirect_stderr(io.StringIO()):  # the progress lines of all nodes
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    return [states[node] for node in range(NUM_CLUSTERS)]


def _rounds(events: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, events.read_text(encoding="utf-8").splitlines())
    return [event for event in lines if event["event"] == "averaging_round"]


def _share(step: int, num_steps: int) -> float:
    warm_up = max(round(WARM_UP_SHARE * num_steps), 1)
    if step < warm_up:
        return (step + 1) / warm_up
    done = min((step - warm_up) / max(num_steps - warm_up, 1), 1.0)
    return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))
