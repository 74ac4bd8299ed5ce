"""One row of the zoo in a process of its own: `python -m benchmarks.zoo.row NAME FILE`.

Captures the model, cuts it, has a clean process run the stages, and compares with the original.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.zoo.chain import load_chain
from benchmarks.zoo.comparing import difference, run_original
from benchmarks.zoo.entry import SEED, Entry
from benchmarks.zoo.exchange import load_value, save_value
from benchmarks.zoo.registry import find
from ravnest.capture.exporting import CapturedModel, capture_model
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import write_stage

REPOSITORY = Path(__file__).resolve().parents[2]
STAGE_COUNTS = (1, 2, 3, 5)
PARTS = ("output", "eval output", "gradients", "buffers")


def main() -> int:
    """Writes the figures of a row; an exception's first line is its `error`."""
    name, path = sys.argv[1], Path(sys.argv[2])
    # Its fused kernels write zeros at padded positions, where nothing else does.
    torch.backends.mha.set_fastpath_enabled(False)
    figures: dict[str, Any] = {"failures": []}
    try:
        measure_row(find(name), figures)
    except Exception as error:  # the process's edge: a row that fails is a result
        text = f"{type(error).__name__}: {str(error).strip()}"
        figures["failures"].append(text.splitlines()[0][:400])
        if not isinstance(error, ImportError):
            sys.excepthook(type(error), error, error.__traceback__)
    path.write_text(json.dumps(figures))
    return 0


def measure_row(entry: Entry, figures: dict[str, Any]) -> None:
    """Fills in the figures as they become known."""
    calls = entry.calls()
    model = entry.model()
    figures["parameters"] = sum(each.numel() for each in model.parameters())
    start, processor_start = time.perf_counter(), time.process_time()
    args, kwargs = calls["example"]
    with noted_warnings(figures):
        captured = capture_model(model, args, kwargs, leaves=entry.leaves)
    figures["capture_s"] = time.perf_counter() - start
    figures["capture_processor_s"] = time.process_time() - processor_start
    how = "export"
    if entry.leaves:
        how = f"export, code that providers trust: {', '.join(entry.leaves)}"
    elif isinstance(model, torch.jit.ScriptModule):
        how = "conversion of a script, export"
    figures["captured_by"] = how
    figures["nodes"] = captured.costs.num_positions
    figures["cuts"] = len(captured.costs.cuts)
    figures["stages"] = [count for count in STAGE_COUNTS if count <= figures["cuts"] + 1]
    with tempfile.TemporaryDirectory(prefix="ravnest-zoo-") as name:
        folder = Path(name)
        for count in figures["stages"]:
            for stage in split(captured, even_cuts(captured, count)):
                write_stage(stage, folder / "stages" / str(count) / str(stage.index))
        check_state(entry, captured, folder / "stages", figures)
        (folder / "calls").mkdir()
        for each, call in calls.items():
            save_value(call, folder / "calls" / each)
        run_provider(folder)
        compare(entry, folder / "results", figures)


@contextmanager
def noted_warnings(figures: dict[str, Any]) -> Iterator[None]:
    """Adds what the capture warns of, such as the fallback it took, as `warnings`."""
    handler = logging.handlers.BufferingHandler(1000)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("ravnest.capture")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        figures["warnings"] = [record.getMessage() for record in handler.buffer]


def even_cuts(captured: CapturedModel, num_stages: int) -> list[int]:
    """Legal cuts evenly over all of them."""
    legal = [cut.position for cut in captured.costs.cuts]
    return [legal[len(legal) * k // num_stages] for k in range(1, num_stages)]


def check_state(
    entry: Entry, captured: CapturedModel, folder: Path, figures: dict[str, Any]
) -> None:
    """The state of all stages together must load strictly into a model with other weights."""
    original = entry.model().state_dict()
    for chain in folder.iterdir():
        merged: dict[str, torch.Tensor] = {}
        for stage in load_chain(chain):
            merged |= {**stage.parameters, **stage.buffers}
        aliases = captured.state.aliases
        merged |= {name: merged[aliases[name]] for name in aliases if aliases[name] in merged}
        merged = {name: merged[name] for name in captured.state.state_names if name in merged}
        other = entry.model(SEED + 1)
        other.load_state_dict(merged, strict=True)
        if difference(dict(other.state_dict()), dict(original)) > 0:
            figures["failures"].append(f"the state of {chain.name} stages is not the model's")


def run_provider(folder: Path) -> None:
    """Runs the stages in a clean process; RuntimeError with its last line when it fails."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.zoo.provider", str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stderr)
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        reason = next((line for line in reversed(lines) if not line.startswith(" ")), lines[-1])
        raise RuntimeError(f"in a clean process: {reason}")


def compare(entry: Entry, results: Path, figures: dict[str, Any]) -> None:
    """Differences of all stage counts from the original, and from one stage with keyed draws."""
    figures["differences"] = dict.fromkeys(PARTS, 0.0)
    for each, call in entry.calls().items():
        expected = run_original(entry, call)
        check_original(entry, expected, figures)
        worst = 0.0
        for count in figures["stages"]:
            actual = load_value(results / str(count) / each)
            for part in PARTS:
                apart = difference(actual[part], expected[part])
                note(figures, entry, f"{part} of the {each}, {count} stages", apart)
                figures["differences"][part] = max(figures["differences"][part], apart)
                worst = max(worst, apart)
        figures["differences"][each] = worst
    whole = load_value(results / "1" / "keyed")
    others = (load_value(results / str(count) / "keyed") for count in figures["stages"])
    apart = max(difference(other, whole) for other in others)
    note(figures, entry, "keyed draws", apart)
    figures["differences"]["keyed draws"] = apart
    for key, value in figures["differences"].items():
        figures["differences"][key] = value if math.isfinite(value) else None


def check_original(entry: Entry, expected: dict[str, Any], figures: dict[str, Any]) -> None:
    """What is compared must be able to differ: outputs, and a gradient that is not zero."""
    gradients = expected["gradients"].values()
    figures["gradient_tensors"] = len(gradients)
    figures["gradient_tensors_not_zero"] = sum(bool(each.any()) for each in gradients)
    if figures["gradient_tensors_not_zero"] * 2 < len(gradients) or not gradients:
        figures["failures"].append("the example gives most parameters no gradient")


def note(figures: dict[str, Any], entry: Entry, what: str, apart: float) -> None:
    """Adds a failure when a difference is larger than the entry allows."""
    if not apart <= entry.tolerance:
        figures["failures"].append(f"{what}: difference {apart:.3g}, allowed {entry.tolerance:g}")


if __name__ == "__main__":
    sys.exit(main())
