"""An 8-billion-parameter Llama without its weights: seconds and memory to capture and cut it.

`python -m benchmarks.large [--json] [--quick]`. The model is on the meta device, in bfloat16, with
the configuration of Llama 3 8B; it is captured in both modes and cut into 8 stages of about equal
parameter bytes, in a fresh process of one thread whose largest resident memory is reported. The
processor seconds, which a busy machine does not lengthen, are shown beside.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Claim, finish, parse_arguments
from ravnest.capture.exporting import CapturedModel, capture_model
from ravnest.capture.splitting import split

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_STAGES = 8
NUM_LAYERS, NUM_LAYERS_QUICK = 32, 8
BATCH, LENGTH = 2, 512
MAX_SECONDS = 30.0
MAX_RESIDENT_BYTES = 1.5e9
TIMEOUT_S = 300


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    if len(sys.argv) == 4 and sys.argv[1] == "measure":
        Path(sys.argv[3]).write_text(json.dumps(measure(int(sys.argv[2]))))
        return 0
    arguments = parse_arguments(__doc__ or "")
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        path = Path(folder, "figures.json")
        layers = NUM_LAYERS_QUICK if arguments.quick else NUM_LAYERS
        subprocess.run(
            [sys.executable, "-m", "benchmarks.large", "measure", str(layers), str(path)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            check=True,
            timeout=TIMEOUT_S,
        )
        figures: dict[str, Any] = json.loads(path.read_text())
    if not arguments.json:
        print(", ".join(f"{name}: {value:.4g}" for name, value in figures.items()))
    claims = [
        Claim("seconds to capture and cut", figures["capture_s"] + figures["split_s"], MAX_SECONDS),
        Claim("largest resident bytes", figures["resident_bytes"], MAX_RESIDENT_BYTES),
    ]
    return finish(figures, claims, as_json=arguments.json)


def measure(num_layers: int) -> dict[str, float]:
    """Captures and cuts the model in this process."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=num_layers,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="meta")
    before_bytes = resident_bytes()
    start, processor_start = time.perf_counter(), time.process_time()
    captured = capture_model(model, (), {"input_ids": ids})
    middle = time.perf_counter()
    stages = split(captured, balanced_cuts(captured, NUM_STAGES))
    end, processor_end = time.perf_counter(), time.process_time()
    sizes = [sum(each.num_bytes for each in stage.parameters.values()) for stage in stages]
    return {
        "parameters": sum(each.numel() for each in model.parameters()),
        "nodes": captured.costs.num_positions,
        "cuts": len(captured.costs.cuts),
        "capture_s": middle - start,
        "split_s": end - middle,
        "processor_s": processor_end - processor_start,
        "resident_bytes_before": before_bytes,
        "resident_bytes": resident_bytes(),
        "largest_stage_bytes": max(sizes),
    }


def balanced_cuts(captured: CapturedModel, num_stages: int) -> list[int]:
    """Per boundary, the cheapest cut of those that leave about equal parameter bytes before it."""
    stored = sorted((each.position, each.num_bytes) for each in captured.costs.stored)
    total = sum(num_bytes for _, num_bytes in stored)
    cuts: list[int] = []
    for k in range(1, num_stages):
        scored = []
        for cut in captured.costs.cuts:
            before = sum(num_bytes for position, num_bytes in stored if position < cut.position)
            if abs(before / total - k / num_stages) < 0.25 / num_stages:
                scored.append((cut.forward_bytes, cut.position))
        cuts.append(min(scored)[1])
    return cuts


def resident_bytes() -> int:
    """The largest resident memory of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(main())
