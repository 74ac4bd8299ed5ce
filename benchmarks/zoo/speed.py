"""Time of stage graphs beside their models: `python -m benchmarks.zoo.speed FILE`.

Forward and backward of five models in train mode, whole and as stages one after another in the
engine that providers run, by turns in one process of one thread, so that a drifting machine drifts
for both. Time is processor time, which others do not lengthen; the ratio is that of the medians.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.zoo.chain import engines_of, load_chain, train_pass
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.exchange import projection_loss
from benchmarks.zoo.registry import find
from benchmarks.zoo.row import even_cuts
from ravnest.capture.exporting import capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import write_stage
from ravnest.plan.structure import flatten

BATCHES = {
    "torchvision ResNet-50": (8, 0),
    "torchvision ViT-B/16": (4, 0),
    "GPT with the loss inside": (16, 128),
    "transformers Llama": (32, 64),
    "transformers BERT for pretraining": (32, 64),
}
"""Samples and tokens per call; enough that a step takes tens of milliseconds."""

NUM_STAGES = 3
REPEATS = 20
WARM_UP = 4


def main() -> int:
    """Writes the figures."""
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"models": {}, "failures": []}
    for name, (batch, length) in BATCHES.items():
        try:
            figures["models"][name] = compare(find(name), batch, length)
        except Exception as error:  # the process's edge: a model that fails is a result
            figures["failures"].append(f"{name}: {type(error).__name__}: {error}"[:400])
    Path(sys.argv[1]).write_text(json.dumps(figures))
    return 0


def compare(entry: Entry, batch: int, length: int) -> dict[str, float]:
    """Median processor seconds of the model and of its stages, and their ratio."""
    model = entry.model()
    args, kwargs = entry.call(batch, length)
    captured = capture_model(model, args, kwargs)
    cuts = even_cuts(captured, min(NUM_STAGES, len(captured.costs.cuts) + 1))
    with tempfile.TemporaryDirectory(prefix="ravnest-zoo-") as folder:
        for stage in split(captured, cuts):
            write_stage(stage, Path(folder, str(stage.index)))
        stages = load_chain(Path(folder))
    engines = engines_of(stages, keyed=True)
    assert stages[0].signature is not None
    signature = stages[0].signature

    def run_model() -> None:
        leaves, _ = flatten(model(*args, **kwargs))
        projection_loss({str(i): leaf for i, leaf in enumerate(leaves)}).backward()
        model.zero_grad()

    def run_stages() -> None:
        train_pass(engines, signature.bind(args, kwargs))
        for engine in engines:
            engine.module.zero_grad()

    measured: dict[str, list[float]] = {"model_s": [], "stages_s": []}
    order = [("model_s", run_model), ("stages_s", run_stages)]
    for repeat in range(WARM_UP + REPEATS):
        for key, run in order:
            seconds = processor_time(run)
            if repeat >= WARM_UP:
                measured[key].append(seconds)
        order.reverse()  # who runs second finds other things in the caches
    result = {key: statistics.median(values) for key, values in measured.items()}
    return {**result, "ratio": result["stages_s"] / result["model_s"], "stages": len(stages)}


def processor_time(run: Callable[[], None]) -> float:
    """Processor seconds that this process spends in a call."""
    start = time.process_time()
    run()
    return time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
