"""One model in a process of its own: `python -m benchmarks.oracle.row NAME FILE CASE ...`."""

from __future__ import annotations

import json
import logging
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.oracle.cases import CASES, Case, applies, epochs_of
from benchmarks.oracle.cluster import Cut, cut_model, train_over_stages
from benchmarks.oracle.outcome import Outcome, differences
from benchmarks.oracle.plain import train_plainly
from benchmarks.zoo.entry import Entry
from benchmarks.zoo.registry import find
from ravnest.errors import RavnestError
from ravnest.stage.schedule import Schedule

STAGE_COUNTS = (1, 2, 3, 4, 5)


def main() -> int:
    """Writes the figures of a model; `missing` when its library is not installed."""
    name, path, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    # Its fused kernels write zeros at padded positions, where nothing else does.
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    figures: dict[str, Any] = {"cases": {}}
    try:
        entry = find(name)
    except ImportError as error:
        figures["missing"] = error.name or str(error)
    else:
        with tempfile.TemporaryDirectory(prefix="ravnest-oracle-") as folder:
            for case in CASES:
                if case.name in names and applies(case, entry):
                    figures["cases"][case.name] = compare(entry, case, Path(folder))
    path.write_text(json.dumps(figures))
    return 0


def compare(entry: Entry, case: Case, folder: Path) -> dict[str, Any]:
    """Every schedule with a flush, at every number of stages, against one process.

    Gradients of a parameter that several stages share are summed over the microbatches on each
    stage before they are added, in one process microbatch by microbatch. In bfloat16 that is
    another rounding. What it amounts to in one process is noted as `rounding`.
    """
    started = time.perf_counter()
    found: dict[str, Any] = {"differences": {}, "tolerance": case.tolerance}
    cuts, epochs = cuts_of(entry, case, folder), epochs_of(entry, case)
    found["stages"] = [len(cut.plan.stages) for cut in cuts]
    found["replicas"] = [sum(len(s.replicas) for s in cut.plan.stages) for cut in cuts]
    for schedule in (each for each in Schedule if each.is_flushed):
        if case.draws:
            expected = train_over_stages(cuts[0], entry, case, epochs, schedule)
        else:
            expected = train_plainly(entry, case, epochs)
            if case.dtype is torch.bfloat16 and any(found["replicas"]):
                other = train_plainly(entry, case, epochs, is_reversed=True)
                found["rounding"] = max(apart(other, expected, case).values())
        found["steps"], found["clipped_steps"] = len(expected.losses), expected.num_clipped
        found["loss"] = [expected.losses[0], expected.losses[-1]]
        worst: dict[str, dict[str, float]] = {}
        for cut in cuts[1:] if case.draws else cuts:
            actual = train_over_stages(cut, entry, case, epochs, schedule, expected.max_norm)
            worst[str(len(cut.plan.stages))] = apart(actual, expected, case)
        found["differences"][str(schedule)] = worst
    found["seconds"] = time.perf_counter() - started
    return found


def apart(actual: Outcome, expected: Outcome, case: Case) -> dict[str, float]:
    """Differences by quantity; what cannot be compared is far apart."""
    found = differences(actual, expected, relative=case.dtype is torch.bfloat16)
    return {
        name: min(value, 1e30) if not math.isnan(value) else 1e30 for name, value in found.items()
    }


_known: dict[tuple[torch.dtype, Path], list[Cut]] = {}


def cuts_of(entry: Entry, case: Case, folder: Path) -> list[Cut]:
    """The model in 1 to 5 stages, fewer where it has fewer legal cuts."""
    key = (case.dtype, folder)
    if key not in _known:
        _known[key] = []
        for count in STAGE_COUNTS:
            try:
                place = folder / str(case.dtype) / str(count)
                _known[key].append(cut_model(entry, case, count, place))
            except RavnestError:
                if count == 1:
                    raise
                break
    return _known[key]


if __name__ == "__main__":
    sys.exit(main())
