"""One provider of a case, in the current folder; writes its peak memory.

`python -m benchmarks.memory.provide CASE OUTPUT NAME`, the first two JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import psutil
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.memory.cases import NUM_STEPS, OPTIMIZERS, UPDATE_FREQUENCY, Case
from benchmarks.memory.models import SUBJECTS, loss
from examples.digits.memory import peak_memory_bytes
from ravnest import Node, Trainer


def provide(case: Case, name: str) -> dict[str, int]:
    """Trains as one node; its peak resident memory."""
    subject = SUBJECTS[case.model]()
    optimizer, params = OPTIMIZERS[case.optimizer]
    before_bytes = psutil.Process().memory_info().rss
    node = Node(
        name=name,
        optimizer=optimizer,
        optimizer_params=params,
        criterion=lambda predictions, targets: loss(predictions, targets[1]),
        update_frequency=UPDATE_FREQUENCY,
        schedule=case.schedule,
        recompute=case.recompute,
        return_memory=True,
    )
    loaded_bytes = peak_memory_bytes()
    count = UPDATE_FREQUENCY * NUM_STEPS
    inputs = subject.inputs.repeat(count, *[1] * (subject.inputs.dim() - 1))
    targets = subject.targets.repeat(count, *[1] * (subject.targets.dim() - 1))
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=len(subject.inputs))
    Trainer(node=node, train_loader=loader, save=True).train()
    node.close()
    return {
        "start_bytes": before_bytes,
        "loaded_bytes": loaded_bytes,
        "peak_bytes": peak_memory_bytes(),
        "processor_ms": int(1000 * time.process_time()),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    peaks = provide(Case(**json.loads(sys.argv[1])), sys.argv[3])
    Path(sys.argv[2]).write_text(json.dumps(peaks))
