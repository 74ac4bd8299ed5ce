"""Training over slow links between network namespaces, beside what others and theory reach.

`python -m benchmarks.wan [--json] [--quick]`. Needs Linux and root; says so and exits with 2
without. Every link is measured before it is used, with nothing else on it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import wan_pipeline
from benchmarks.links import MAX_ERROR, why_impossible
from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.wan_pipeline import GPT, OWN, TORCH, WAITS

MAX_OF_TORCH = 0.65
PIPELINES = {WAITS: "stages that wait as the GPT's compute", GPT: "GPT"}


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold, 2 when it cannot be run here."""
    arguments = parse_arguments(__doc__ or "")
    if (reason := why_impossible()) is not None:
        print(f"no links to train over here: {reason}", file=sys.stderr)
        return 2
    figures: dict[str, Any] = {}
    for name, each in pipelines(quick=arguments.quick):
        figures[name] = each
        if not arguments.json:
            show_pipeline(name, each)
    return finish(figures, claims_of(figures), as_json=arguments.json)


def pipelines(*, quick: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """One pipeline over 100 Mbps and 40 ms: with stages that wait, and the GPT."""
    if quick:
        yield WAITS, wan_pipeline.compare(WAITS, 1, rounds=2, steps=1, kinds=(OWN,))
        return
    kinds = tuple(wan_pipeline.KINDS)
    yield WAITS, wan_pipeline.compare(WAITS, 3, rounds=3, steps=4, kinds=kinds)
    yield GPT, wan_pipeline.compare(GPT, 3, rounds=2, steps=3, kinds=(OWN,))


def claims_of(figures: dict[str, Any]) -> list[Claim]:
    """What is promised of the figures."""
    claims = [
        Claim(
            f"{title} over 3 stages, 100 Mbps, 40 ms, 1f1b in fp32 over torch's 1F1B, step time",
            figures[name][f"{OWN} / {TORCH}"],
            MAX_OF_TORCH,
        )
        for name, title in PIPELINES.items()
        if name in figures
    ]
    links = [link for each in figures.values() for link in each["links"]]
    return [
        *claims,
        Claim(
            "error of the emulated links in rate and round trip, largest of the links",
            max(link["error"] for link in links),
            MAX_ERROR,
        ),
    ]


def show_pipeline(name: str, result: dict[str, Any]) -> None:
    """Prints the comparison with torch."""
    print(f"\n{PIPELINES[name]} over 3 stages, 100 Mbps, 40 ms: seconds per step, 1 thread each")
    for kind in (TORCH, *wan_pipeline.KINDS):
        if kind in result:
            each, ratio = result[kind], result[f"{kind} / {TORCH}"]
            print(
                f"  {kind:18} {each['step_s']:.3f} s  {each['cpu_s']:.3f} processor s  "
                f"{ratio:.3f} of torch's"
            )


if __name__ == "__main__":
    sys.exit(main())
