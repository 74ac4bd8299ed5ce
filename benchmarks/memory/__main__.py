"""Predicted beside measured peak memory of every node, over models, optimizers and schedules.

`python -m benchmarks.memory [--json] [--quick] [--models NAME ...]`. Every case is planned in a
process of its own and then trained by real providers, of one thread each, one case at a time. An
error of 1 is 10 % of the measured peak, or 50 MB where that is more. The providers return freed
memory to the system, as nodes do by themselves where the plan leaves them little to spare. The
whole takes about two hours on two cores and up to 9 GB at a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.memory.cases import Case
from benchmarks.processes import run_processes, write_loopback_nodes
from benchmarks.report import Claim, finish

MEMORY_GB = 16
TIMEOUT_S = 1200
MAX_ERROR = 1.0
SCHEDULES = ("1f1b", "async")
TWO_WAYS = (False, True)


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="two small cases")
    parser.add_argument("--models", nargs="+", help="only these models")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for case in _quick() if arguments.quick else _all():
        if arguments.models is None or case.model in arguments.models:
            results[str(case)] = rows = measure(case)
            if not arguments.json:
                show(case, rows)
    claims = [
        Claim(f"largest error, {name}", max(abs(row["error"]) for row in rows), MAX_ERROR)
        for name, rows in results.items()
    ]
    return finish({"cases": results}, claims, as_json=arguments.json)


def _quick() -> Iterator[Case]:
    yield Case("digits CNN", "Adam", False, "1f1b", 2)
    yield Case("small GPT", "AdamW", True, "async", 2)


def _all() -> Iterator[Case]:
    """Every optimizer, recompute setting and schedule of each model, and the largest sizes once."""
    sizes = (("digits CNN", 3), ("small GPT", 3), ("ResNet-50", 2), ("GPT", 3), ("BERT", 2))
    for model, num_nodes in sizes:
        for optimizer, recompute, schedule in itertools.product(
            ("SGD", "Adam", "AdamW"), TWO_WAYS, SCHEDULES
        ):
            yield Case(model, optimizer, recompute, schedule, num_nodes)
    yield Case("large GPT", "AdamW", False, "1f1b", 1)
    yield Case("large GPT", "AdamW", True, "async", 2)


def measure(case: Case) -> list[dict[str, Any]]:
    """Per node: predicted and measured peak, error, and the predicted parts, in bytes."""
    with tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder:
        work = Path(folder)
        (work / "node_data").mkdir()
        write_loopback_nodes(work / "node_data", case.num_nodes, memory_gb=MEMORY_GB)
        text = json.dumps(asdict(case))
        run_processes([["benchmarks.memory.predict", text, "predicted.json"]], work, TIMEOUT_S)
        rows: list[dict[str, Any]] = json.loads((work / "predicted.json").read_text())
        commands = [
            ["benchmarks.memory.provide", text, f"{row['node']}.json", f"node_{row['node']}"]
            for row in rows
        ]
        run_processes(commands, work, TIMEOUT_S)
        for row in rows:
            row["measured"] = json.loads((work / f"{row['node']}.json").read_text())
            peak = row["measured"]["peak_bytes"]
            row["error"] = (row["predicted_bytes"] - peak) / max(0.1 * peak, 50e6)
    return rows


def show(case: Case, rows: Sequence[dict[str, Any]]) -> None:
    """Prints one case."""
    print(f"\n{case}")
    for row in rows:
        parts = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in row["parts"].items() if size)
        print(
            f"  node {row['node']}: predicted {row['predicted_bytes'] / 1e6:.0f} MB, measured "
            f"{row['measured']['peak_bytes'] / 1e6:.0f} MB, error {row['error']:+.2f} ({parts})",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
