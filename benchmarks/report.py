"""What every benchmark prints: figures for people, and claims with their goals for machines."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """A figure and what it is held against.

    Attributes:
        value: as measured in this run.
        goal: largest value that holds, or the smallest.
        at_least: it is the smallest.
    """

    name: str
    value: float
    goal: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the figure reaches its goal."""
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def parse_arguments(description: str) -> argparse.Namespace:
    """What every benchmark takes, and nothing else."""
    return arguments_of(description).parse_args()


def arguments_of(description: str) -> argparse.ArgumentParser:
    """`--json` prints one object; `--quick` is a short form: does everything still run?"""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="a short run, too short to quote")
    return parser


def finish(figures: dict[str, Any], claims: Sequence[Claim], *, as_json: bool) -> int:
    """Prints figures and claims; 1 when a claim does not hold."""
    if as_json:
        rows = [{**_as_row(claim), "holds": claim.holds} for claim in claims]
        json.dump({**figures, "claims": rows}, sys.stdout, indent=2)
        print()
    else:
        for claim in claims:
            verdict = "holds" if claim.holds else "DOES NOT HOLD"
            bound = "at least" if claim.at_least else "at most"
            print(f"{claim.name}: {claim.value:.3g} (goal: {bound} {claim.goal:g}) {verdict}")
    return 0 if all(claim.holds for claim in claims) else 1


def _as_row(claim: Claim) -> dict[str, Any]:
    """Its fields; `at_least` only where it is true."""
    row = asdict(claim)
    if not claim.at_least:
        del row["at_least"]
    return row
