"""The processes that `benchmarks.accelerators` starts; each writes its figures to a file.

`python -m benchmarks.accelerators_worker plan|ravnest|torch OUTPUT ARGUMENT`
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from benchmarks.transformer import Block

VOCABULARY = 16384
WIDTH = 2048
NUM_BLOCKS = 24
NUM_HEADS = 16
CONTEXT = 1024
SAMPLES = 4  # per microbatch
NUM_MICROBATCHES = 16
NUM_STEPS = 6
WARM_UP_STEPS = 2
LEARNING_RATE = 1e-4


class Embedding(torch.nn.Module):
    """Token and position embeddings: (N, CONTEXT) integers to (N, CONTEXT, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.token = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.position = torch.nn.Parameter(torch.zeros(CONTEXT, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.token(tokens) + self.position


def build() -> torch.nn.Sequential:
    """The model, on the device that is the default, in bfloat16."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    blocks = [Block(WIDTH, NUM_HEADS) for _ in range(NUM_BLOCKS)]
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    model = torch.nn.Sequential(Embedding(), *blocks, torch.nn.LayerNorm(WIDTH), head)
    torch.set_default_dtype(torch.float32)
    return model


def num_parameters() -> int:
    """Of the model."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets of one step, on the CPU."""
    generator = torch.Generator().manual_seed(1)
    shape = (SAMPLES * NUM_MICROBATCHES, CONTEXT)
    tokens = torch.randint(0, VOCABULARY, shape, generator=generator)
    return tokens, torch.roll(tokens, -1, 1)


def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over all tokens."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def plan(output: str) -> None:
    """Plans for one cluster of all nodes, whatever schedule; writes their order."""
    from ravnest import clusterize

    made = clusterize(
        build(),
        (batch()[0][:SAMPLES],),
        num_clusters=1,
        schedule="async",  # which takes the most memory
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": LEARNING_RATE},
        update_frequency=NUM_MICROBATCHES,
        self_test=False,
    )
    Path(output).write_text(json.dumps(made.clusters[0]))


def rates(times: list[float]) -> list[float]:
    """Tokens per second between the ends of steps."""
    kept = times[WARM_UP_STEPS - 1 :]
    tokens = SAMPLES * NUM_MICROBATCHES * CONTEXT
    return [tokens / (b - a) for a, b in itertools.pairwise(kept)]


def ravnest_node(options: dict[str, Any]) -> dict[str, Any]:
    """One provider; a batch of the loader is a microbatch."""
    from torch.utils.data import DataLoader, TensorDataset

    from ravnest import Node, Trainer

    device = torch.device(f"cuda:{options['node']}")
    torch.cuda.set_device(device)
    tokens, targets = batch()
    dataset = TensorDataset(tokens.repeat(NUM_STEPS, 1), targets.repeat(NUM_STEPS, 1))
    loader = DataLoader(dataset, batch_size=SAMPLES)
    last = 0.0

    def criterion(predictions: torch.Tensor, labels: Any) -> torch.Tensor:
        nonlocal last
        found = loss(predictions, labels[1])
        last = found.detach()
        return found / NUM_MICROBATCHES

    node = Node(
        name=f"node_{options['node']}",
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": LEARNING_RATE},
        criterion=criterion,
        labels=loader,
        device=device,
        update_frequency=NUM_MICROBATCHES,
        schedule=options["schedule"],
    )
    Trainer(node=node, train_loader=loader).train()
    node.close()
    events = Path("events") / f"node_{options['node']}.jsonl"
    records = [json.loads(line) for line in events.read_text().splitlines()]
    times = [
        datetime.fromisoformat(record["time"]).timestamp()
        for record in records
        if record["event"] == "step"
    ]
    return {"tokens_per_s": rates(times), "loss": float(last)}


def torch_stage(options: dict[str, Any]) -> dict[str, Any]:
    """One stage under torch.distributed.pipelining, 1F1B over NCCL."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, size = options["rank"], options["size"]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options["port"]))
    device = torch.device(f"cuda:{rank}")
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=device)
    with torch.device("meta"):
        parts = build()
    start, end = (round(NUM_BLOCKS * k / size) + (k > 0) for k in (rank, rank + 1))
    module = parts[start : end if rank < size - 1 else len(parts)].to_empty(device=device)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
    schedule = Schedule1F1B(
        PipelineStage(module, rank, size, device), NUM_MICROBATCHES, loss_fn=loss
    )
    tokens, targets = (each.to(device) for each in batch())
    times, losses = [], []
    for _ in range(NUM_STEPS):
        losses = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens)
        elif rank == size - 1:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter())
    dist.destroy_process_group()
    return {"tokens_per_s": rates(times), "loss": float(losses[-1]) if losses else None}


def main(kind: str, output: str, argument: str) -> None:
    """Runs one worker."""
    if kind == "plan":
        plan(output)
        return
    worker = ravnest_node if kind == "ravnest" else torch_stage
    Path(output).write_text(json.dumps(worker(json.loads(argument))))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
