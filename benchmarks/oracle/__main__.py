"""Training over stages against training in one process: `python -m benchmarks.oracle`.

`[--json] [--quick] [--rows NAME ...] [--cases NAME ...]`. Each model of the zoo, large ones in a
small size, is cut into 1 to 5 stages (fewer when it has fewer legal cuts) and trained for 20
optimizer steps by real nodes over the in-memory transport, under every schedule that flushes.
Losses of all steps, the gradients of the last, and all weights and buffers at the end are compared
with the original model's, trained by plain PyTorch in one process on the same microbatches. What
users switch on is switched on in turn, then together. For that, masks of dropout keep everything,
since one process draws other ones; with dropout, any number of stages is compared with one. In
bfloat16 differences are relative to each tensor's largest value, in float32 absolute (relative
where the largest is above 1). Models whose library is not installed are named and left out. Where
stages share parameters in bfloat16, the one process sums gradients in their order (see `apart`).
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

from benchmarks.oracle.cases import CASES, QUICK_CASES
from benchmarks.report import Claim, finish
from benchmarks.zoo.registry import QUICK, all_names

REPOSITORY = Path(__file__).resolve().parents[2]
ROW_TIMEOUT_S = 3600


def main() -> int:
    """Runs the comparison; 1 when a claim does not hold."""
    arguments = parse_oracle_arguments()
    names = arguments.rows or (QUICK[1:2] if arguments.quick else all_names())
    cases = arguments.cases or (QUICK_CASES if arguments.quick else [case.name for case in CASES])
    figures: dict[str, Any] = {"rows": {}, "left_out": []}
    claims: list[Claim] = []
    for name in names:
        row = run_row(name, cases)
        figures["rows"][name] = row
        if "missing" in row:
            figures["left_out"].append(f"{name}: {row['missing']} is not installed")
        claims += claims_of(name, row)
        print(describe(name, row), file=sys.stderr if arguments.json else sys.stdout, flush=True)
    return finish(figures, claims, as_json=arguments.json)


def parse_oracle_arguments() -> argparse.Namespace:
    """The arguments of every benchmark, and a choice of models and cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="one cheap model of torch alone")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these models")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="only these cases")
    return parser.parse_args()


def run_row(name: str, cases: Sequence[str]) -> dict[str, Any]:
    """One model in a process of its own, so that none takes the others down."""
    with tempfile.TemporaryDirectory(prefix="ravnest-oracle-") as folder:
        path, log = Path(folder, "figures.json"), Path(folder, "log.txt")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.oracle.row", name, str(path), *cases],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                code: int | str = process.wait(ROW_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = f"none within {ROW_TIMEOUT_S} s"
            finally:
                process.kill()
                process.wait()
        figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cases": {}}
        if code != 0:
            lines = log.read_text(errors="replace").strip().splitlines() or ["without a word"]
            figures["failure"] = f"exit code {code}: {lines[-1][:400]}"
        return figures


def claims_of(name: str, row: dict[str, Any]) -> list[Claim]:
    """One per case and schedule: the largest difference at any number of stages."""
    claims = [Claim(f"{name}: comparisons that fail", int("failure" in row), 0)]
    for case, found in row["cases"].items():
        claims += [
            Claim(
                f"{name}, {case}, {schedule}, {'/'.join(worst)} stages: largest difference",
                max((value for each in worst.values() for value in each.values()), default=0.0),
                found["tolerance"],
            )
            for schedule, worst in found["differences"].items()
        ]
        if "clipping" in case:
            claims.append(
                Claim(f"{name}, {case}: steps clipped", found["clipped_steps"], 1, at_least=True)
            )
    return [] if "missing" in row else claims


def describe(name: str, row: dict[str, Any]) -> str:
    """A model in words."""
    if "missing" in row:
        return f"{name}: left out, {row['missing']} is not installed"
    lines = [f"{name}: {row['failure']}" if "failure" in row else name]
    for case, found in row["cases"].items():
        for schedule, worst in found["differences"].items():
            each = {
                quantity: max(by_stage[quantity] for by_stage in worst.values())
                for quantity in next(iter(worst.values()), {})
            }
            verdict = "ok" if max(each.values(), default=0) <= found["tolerance"] else "FAILS"
            rounding = (
                f"; summing as one process does: itself {found.get('rounding', 0):.2g} apart, "
                f"stages {found.get('otherwise', 0):.2g}"
            )
            values = ", ".join(f"{quantity} {value:.2g}" for quantity, value in each.items())
            lines.append(
                f"  {case:32} {schedule:8} {'/'.join(worst)} stages {verdict:6} {values}"
                f"{rounding if 'rounding' in found else ''} ({found['seconds']:.0f} s)"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
