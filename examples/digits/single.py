"""The same training in one process, to compare with: `python -m examples.digits.single`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

from examples.digits.memory import peak_memory_bytes
from examples.digits.model import (
    EPOCHS,
    LEARNING_RATE,
    SEED,
    DigitsCNN,
    accuracy,
    load_data,
    loss_fn,
)
from ravnest import set_seed


def main() -> None:
    """Trains, evaluates and writes report_single.json in the current folder."""
    set_seed(SEED)
    model = DigitsCNN()
    train_loader, test_loader = load_data()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    started = time.perf_counter()
    for _ in range(EPOCHS):
        for batch in train_loader:
            optimizer.zero_grad()
            loss_fn(model(batch[0]), batch).backward()
            optimizer.step()
    seconds = time.perf_counter() - started
    report = {
        "seconds": seconds,
        "accuracy": accuracy(model, test_loader),
        "peak_memory_bytes": peak_memory_bytes(),
    }
    Path("report_single.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
