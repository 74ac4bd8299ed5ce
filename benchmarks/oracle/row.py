"""One model in a process of its own: `python -m benchmarks.oracle.row NAME FILE CASE ...`."""

from __future__ import annotations

import json
import logging
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.oracle.apart import Uses, dealings_of_uses, modules_called
from benchmarks.oracle.cases import (
    CASES,
    Case,
    Epochs,
    applies,
    epochs_of,
    example_of,
    model_of,
)
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

    In bfloat16, where stages share parameters, that process sums their gradients in the order of
    the stages (see `apart`). How far it is from one that sums as it pleases, with which Ravnest has
    nothing to do, is noted as `rounding`, and how far Ravnest is from the latter as `otherwise`.
    """
    started = time.perf_counter()
    found: dict[str, Any] = {"differences": {}, "tolerance": case.tolerance}
    cuts, epochs = cuts_of(entry, case, folder), epochs_of(entry, case)
    found["stages"] = [len(cut.plan.stages) for cut in cuts]
    found["replicas"] = [sum(len(s.replicas) for s in cut.plan.stages) for cut in cuts]
    references = References(entry, case, epochs)
    for schedule in (each for each in Schedule if each.is_flushed):
        if case.draws:
            expected = train_over_stages(cuts[0], entry, case, epochs, schedule)
        else:
            expected = references.plain
        found["steps"], found["clipped_steps"] = len(expected.losses), expected.num_clipped
        found["loss"] = [expected.losses[0], expected.losses[-1]]
        worst: dict[str, dict[str, float]] = {}
        for cut in cuts[1:] if case.draws else cuts:
            actual = train_over_stages(cut, entry, case, epochs, schedule, expected.max_norm)
            others = [expected] if case.draws else references.of(cut)
            worst[str(len(cut.plan.stages))] = min(
                (apart(actual, other, case) for other in others),
                key=lambda quantities: max(quantities.values()),
            )
            if others[0] is not expected:
                _note(found, "otherwise", apart(actual, expected, case))
                _note(found, "rounding", apart(others[0], expected, case))
        found["differences"][str(schedule)] = worst
    found["seconds"] = time.perf_counter() - started
    return found


class References:
    """What one process makes of a case, trained when it is first asked for."""

    def __init__(self, entry: Entry, case: Case, epochs: Epochs) -> None:
        self._entry, self._case, self._epochs = entry, case, epochs
        self.plain = train_plainly(entry, case, epochs)
        self._apart: dict[str, Outcome] = {}

    def of(self, cut: Cut) -> list[Outcome]:
        """The outcomes of which a cut has to equal one: which stage has which use is not known."""
        users = Counter(each.name for stage in cut.plan.stages for each in stage.replicas)
        if self._case.dtype is not torch.bfloat16 or not users:
            return [self.plain]
        model = model_of(self._entry, self._case)
        args, kwargs = example_of(self._entry, self._case)
        called = modules_called(model, *args, **kwargs)
        num_users = {name: holders + 1 for name, holders in users.items()}
        return [self._trained(uses) for uses in dealings_of_uses(model, called, num_users)]

    def _trained(self, uses: Uses) -> Outcome:
        key = repr(uses)
        if key not in self._apart:
            self._apart[key] = train_plainly(
                self._entry, self._case, self._epochs, uses, self.plain.max_norm
            )
        return self._apart[key]


def _note(found: dict[str, Any], name: str, quantities: Mapping[str, float]) -> None:
    found[name] = max(found.get(name, 0.0), *quantities.values())


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
