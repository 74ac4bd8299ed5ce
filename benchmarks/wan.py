"""Training over slow links between network namespaces, beside what others and theory reach.

`python -m benchmarks.wan [--json] [--quick]`. Needs Linux and root; says so and exits with 2
without. Every link is measured before it is used, with nothing else on it.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks import wan_pipeline
from benchmarks.links import MAX_ERROR, why_impossible
from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.wan_pipeline import TORCH

MAX_OF_TORCH = 0.65


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold, 2 when it cannot be run here."""
    arguments = parse_arguments(__doc__ or "")
    if (reason := why_impossible()) is not None:
        print(f"no links to train over here: {reason}", file=sys.stderr)
        return 2
    figures: dict[str, Any] = {"pipeline": pipeline(quick=arguments.quick)}
    if not arguments.json:
        show_pipeline(figures["pipeline"])
    return finish(figures, claims_of(figures), as_json=arguments.json)


def pipeline(*, quick: bool) -> dict[str, Any]:
    """One pipeline over 100 Mbps and 40 ms, by schedule."""
    if quick:
        return wan_pipeline.compare(1, rounds=2, steps=1, kinds=("ravnest 1f1b",))
    return wan_pipeline.compare(3, rounds=3, steps=3, kinds=tuple(wan_pipeline.KINDS))


def claims_of(figures: dict[str, Any]) -> list[Claim]:
    """What is promised of the figures."""
    one = figures["pipeline"]
    return [
        Claim(
            "GPT over 3 stages, 100 Mbps, 40 ms, 1f1b in fp32 over torch's 1F1B, step time",
            one[f"ravnest 1f1b / {TORCH}"],
            MAX_OF_TORCH,
        ),
        Claim(
            "error of the emulated links in rate and round trip, largest of the links",
            max(link["error"] for link in one["links"]),
            MAX_ERROR,
        ),
    ]


def show_pipeline(result: dict[str, Any]) -> None:
    """Prints the comparison with torch."""
    print("\nGPT over 3 stages, 100 Mbps, 40 ms: seconds per step, 1 thread each")
    for kind in (TORCH, *wan_pipeline.KINDS):
        if kind in result:
            ratio = result[f"{kind} / {TORCH}"]
            each = result[kind]
            print(
                f"  {kind:18} {each['step_s']:.3f} s  {each['cpu_s']:.3f} processor s  "
                f"{ratio:.3f} of torch's"
            )


if __name__ == "__main__":
    sys.exit(main())
