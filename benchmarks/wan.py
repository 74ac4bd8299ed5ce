"""Training over slow links between network namespaces, beside what others and theory reach.

`python -m benchmarks.wan [--json] [--quick]`. Needs Linux and root; says so and exits with 2
without. Every link is measured before it is used, with nothing else on it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from benchmarks import wan_clusters, wan_losses, wan_pipeline
from benchmarks.links import MAX_ERROR, why_impossible
from benchmarks.report import Claim, finish, parse_arguments
from benchmarks.wan_clusters import RATES_MBPS, ROUND_TRIPS_MS, Setting
from benchmarks.wan_pipeline import GPT, OWN, TORCH, WAITS

MAX_OF_TORCH = 0.65
MIN_OF_BOUND = 0.95
MIN_OVER_NAIVE = 10.0
MAX_LOSS_BEHIND = 0.01
PIPELINES = {WAITS: "stages that wait as the GPT's compute", GPT: "GPT"}
SETTINGS = [Setting(rate, round_trip) for rate in RATES_MBPS for round_trip in ROUND_TRIPS_MS]
JUDGED = Setting(80.0, 100.0)
COMPRESSION = "int8"
"""The strongest that "auto" chooses; its losses are compared."""


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold, 2 when it cannot be run here."""
    arguments = parse_arguments(__doc__ or "")
    if (reason := why_impossible()) is not None:
        print(f"no links to train over here: {reason}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    figures = measure(quick=arguments.quick, is_shown=not arguments.json)
    return finish(figures, claims_of(figures), as_json=arguments.json)


def measure(*, quick: bool, is_shown: bool) -> dict[str, Any]:
    """All figures, shown as they come."""
    figures: dict[str, Any] = {"pipelines": {}, "clusters": {}}
    kinds = (OWN,) if quick else tuple(wan_pipeline.KINDS)
    runs = {WAITS: (1, 2, 1, kinds)} if quick else {WAITS: (3, 3, 4, kinds), GPT: (3, 2, 3, (OWN,))}
    for name, (repeats, rounds, steps, compared) in runs.items():
        found = wan_pipeline.compare(name, repeats, rounds=rounds, steps=steps, kinds=compared)
        figures["pipelines"][name] = found
        if is_shown:
            show_pipeline(name, found)
    for setting in [] if quick else SETTINGS:
        found = wan_clusters.measure(setting, num_steps=30, num_naive=6)
        figures["clusters"][setting.title] = found
        if is_shown:
            show_clusters(setting.title, found)
    figures["losses"] = wan_losses.compare(
        COMPRESSION, num_seeds=1 if quick else 3, shortened=100 if quick else 1
    )
    return figures


def claims_of(figures: dict[str, Any]) -> list[Claim]:
    """What is promised of the figures that there are."""
    claims = [
        Claim(
            f"{PIPELINES[name]} over 3 stages, 100 Mbps, 40 ms: 1f1b in fp32 over torch's 1F1B",
            found[f"{OWN} / {TORCH}"],
            MAX_OF_TORCH,
        )
        for name, found in figures["pipelines"].items()
    ]
    for title, found in figures["clusters"].items():
        name = f"2 clusters of 3 stages, {title}: samples/s over what stages and links allow"
        claims.append(Claim(name, found["of_bound"], MIN_OF_BOUND, at_least=True))
        if title == JUDGED.title:
            name = f"2 clusters of 3 stages, {title}: samples/s over those of the naive setting"
            claims.append(Claim(name, found["over_naive"], MIN_OVER_NAIVE, at_least=True))
    loss = f"final loss with {COMPRESSION} on the wire, behind the one without, mean of the seeds"
    claims.append(Claim(loss, figures["losses"]["behind"], MAX_LOSS_BEHIND))
    groups = (*figures["pipelines"].values(), *figures["clusters"].values())
    worst = max(link["error"] for each in groups for link in each["links"])
    error = "error of the emulated links in rate and round trip, largest of the links"
    return [*claims, Claim(error, worst, MAX_ERROR)]


def show_pipeline(name: str, result: dict[str, Any]) -> None:
    """Prints the comparison with torch."""
    print(f"\n{PIPELINES[name]} over 3 stages, 100 Mbps, 40 ms: seconds per step, 1 thread each")
    for kind in (TORCH, *wan_pipeline.KINDS):
        if kind in result:
            each, ratio = result[kind], result[f"{kind} / {TORCH}"]
            print(
                f"  {kind:18} {each['step_s']:.3f} s  {each['cpu_s']:.3f} processor s  "
                f"{ratio:.3f} of torch's",
                flush=True,
            )


def show_clusters(title: str, result: dict[str, Any]) -> None:
    """Prints one setting of the links."""
    chosen = ", ".join(f"{each[0]}-{each[1]} {each[2]}" for each in result["compressions"])
    print(
        f"\n2 clusters of 3 stages, {title}; links: {chosen}\n"
        f"  {result['samples_per_s']:.2f} samples/s, {result['of_bound']:.3f} of the bound, "
        f"predicted {result['predicted_samples_per_s']:.2f}\n"
        f"  naive {result['naive_samples_per_s']:.3f}; {result['over_naive']:.1f} times that with "
        f"rounds of {result['round_s']:.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
