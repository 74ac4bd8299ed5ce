"""Every model of the zoo, cut into stages and compared with itself in one process.

`python -m benchmarks.zoo [--json] [--quick] [--rows NAME ...]`. Each model is captured, cut into 1,
2, 3 and 5 stages (fewer when it has fewer legal cuts), written to files, and run in a clean process
that can import neither its class nor the library it comes from. Outputs of both modes, all
gradients and buffers are compared with the untouched model's, for the batch it was captured with,
another batch size and another sequence length; dropout included, drawn in the same order on both
sides. With the keyed draws of a real run, which differ from the model's, every number of stages
must give what one stage gives. The state of all stages must load strictly. Then stage graphs are
timed beside their models.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Claim, finish
from benchmarks.zoo.registry import QUICK, all_names

REPOSITORY = Path(__file__).resolve().parents[2]
ROW_TIMEOUT_S = 400
MAX_RATIO = 1.05


def main() -> int:
    """Runs the zoo; 1 when a claim does not hold."""
    arguments = parse_zoo_arguments()
    names = arguments.rows or (QUICK if arguments.quick else all_names())
    figures: dict[str, Any] = {"rows": {}}
    claims: list[Claim] = []
    for name in names:
        row = run_row(name)
        figures["rows"][name] = row
        claims.append(Claim(f"{name}: checks that fail", len(row["failures"]), 0))
        print(describe(name, row), file=sys.stderr if arguments.json else sys.stdout, flush=True)
    if not arguments.quick and not arguments.rows:
        figures["speed"] = run_module("benchmarks.zoo.speed", [])
        claims += [
            Claim(f"{name}: time of the stage graphs / the model's", measured["ratio"], MAX_RATIO)
            for name, measured in figures["speed"].get("models", {}).items()
        ]
        failures = figures["speed"]["failures"]
        claims.append(Claim("speed: checks that fail", len(failures), 0))
    return finish(figures, claims, as_json=arguments.json)


def parse_zoo_arguments() -> argparse.Namespace:
    """The arguments of every benchmark, and a choice of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a few cheap models of torch alone")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these models")
    return parser.parse_args()


def run_row(name: str) -> dict[str, Any]:
    """One model in a process of its own, so that none takes the others down."""
    return run_module("benchmarks.zoo.row", [name])


def run_module(module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """The figures that a module writes to the file it is given last."""
    with tempfile.TemporaryDirectory(prefix="ravnest-zoo-") as folder:
        path, log = Path(folder, "figures.json"), Path(folder, "log.txt")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments, str(path)],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code = process.wait(ROW_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                return {"failures": [f"it did not end within {ROW_TIMEOUT_S} s"]}
            finally:
                process.kill()
                process.wait()
        if not path.exists():
            lines = log.read_text(errors="replace").strip().splitlines() or ["without a word"]
            return {"failures": [f"it ended with exit code {code}: {lines[-1][:300]}"]}
        figures: dict[str, Any] = json.loads(path.read_text())
        return figures


def describe(name: str, row: dict[str, Any]) -> str:
    """A row in words."""
    verdict = "FAILS" if row["failures"] else "ok"
    text = f"{name:38} {verdict:6}"
    if "cuts" in row:
        stages = "/".join(map(str, row["stages"]))
        fewer = "" if row["stages"][-1] == 5 else " (no more legal cuts)"
        text += (
            f"{row['captured_by']}, {row['capture_s']:.1f} s, {row['nodes']} nodes, "
            f"{row['cuts']} cuts, {stages} stages{fewer}"
        )
    worst = [f"{k} {v:.2g}" for k, v in row.get("differences", {}).items() if v]
    if worst and not row["failures"]:
        text += f"; differences: {', '.join(worst)}"
    return "\n      ".join([text, *row.get("warnings", ()), *row["failures"][:3]])


if __name__ == "__main__":
    sys.exit(main())
