"""A simulated run for people: throughput beside the prediction, shares, staleness, failures."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from ravnest.cli.rendering import units
from ravnest.cli.rendering.style import (
    DIM,
    EMPHASIS,
    FAILURE,
    GOOD,
    WARNING,
    bar,
    columns,
    indented,
    level_style,
    line,
)
from ravnest.plan.identity import node_name
from ravnest.plan.model import Plan
from ravnest.plan.parts import role_at
from ravnest.plan.prediction import Traffic
from ravnest.simulate.result import LinkResult, SimulationResult
from ravnest.simulate.settings import SimulationSettings
from ravnest.simulate.wiring import prediction_of

_MAX_CLUSTERS, _MAX_NODES, _MAX_LINKS, _MAX_AGES = 16, 32, 12, 12
_NEAR = 0.10  # what prediction and simulation may be apart


def show_simulation(
    console: Console, plan: Plan, settings: SimulationSettings, result: SimulationResult
) -> None:
    """Prints a run."""
    console.print(_title(plan, result))
    console.print(line((_run_in_words(plan, settings, result), DIM)))
    console.print()
    _show_clusters(console, plan, result)
    console.print()
    _show_nodes(console, plan, result)
    if result.links:
        console.print()
        _show_links(console, plan, result.links)
    if result.staleness:
        console.print()
        _show_staleness(console, result)
    _show_failures(console, plan, result)


def _title(plan: Plan, result: SimulationResult) -> Text:
    clusters = units.count(len(plan.clusters), "cluster")
    nodes = units.count(len(plan.stages), "node")
    predicted = prediction_of(plan).samples_per_s
    return line(
        (f"{plan.model.rpartition('.')[2]} on {nodes} in {clusters}, simulated: ", EMPHASIS),
        (f"{units.number(result.samples_per_s)} samples/s", f"{EMPHASIS} {GOOD}"),
        f", {units.number(predicted)} predicted ",
        _ratio(result.samples_per_s, predicted),
    )


def _run_in_words(plan: Plan, settings: SimulationSettings, result: SimulationResult) -> str:
    run = prediction_of(plan).run
    steps = units.count(result.num_steps, "step")
    samples = units.count(run.samples_per_microbatch, "sample")
    parts = [
        f"{steps} of {run.update_frequency} x {samples} in {units.duration(result.duration_s)}",
        f"schedule {run.schedule}",
    ]
    if result.num_rounds:
        rounds = units.count(result.num_rounds, "averaging round")
        predicted = units.duration(prediction_of(plan).averaging_s)
        mean = units.duration(result.averaging_s)
        parts.append(f"{rounds} of {mean}, {predicted} predicted")
    if settings.jitter_s:
        parts.append(f"jitter {units.duration(settings.jitter_s)}")
    if settings.speed_variation:
        parts.append(f"speeds vary by {units.percent(settings.speed_variation)}")
    parts += [f"{node_name(node)} at {speed:g}x" for node, speed in settings.speeds.items()]
    if settings.jitter_s or settings.speed_variation:
        parts.append(f"seed {settings.seed}")
    return ", ".join(parts)


def _show_clusters(console: Console, plan: Plan, result: SimulationResult) -> None:
    predicted = {each.cluster_id: each for each in prediction_of(plan).clusters}
    rows: list[list[str | Text]] = []
    for cluster in result.clusters[:_MAX_CLUSTERS]:
        expected_s = predicted[cluster.cluster_id].step_time_s
        is_measured = math.isfinite(cluster.step_time_s)
        stopped = cluster.stopped_by
        rows.append(
            [
                str(cluster.cluster_id),
                units.number(cluster.samples_per_s),
                units.duration(cluster.step_time_s) if is_measured else "-",
                units.duration(expected_s),
                _ratio(cluster.step_time_s, expected_s) if is_measured else "",
                f"{cluster.num_steps:,}",
                Text("to the end" if stopped is None else f"stopped by {node_name(stopped)}"),
            ]
        )
    headings = ("cluster", "samples/s", "step", "predicted", "ratio", "steps", "ran")
    console.print(columns(headings, rows, left="l     l"))
    _say_more(console, len(result.clusters) - _MAX_CLUSTERS, "cluster")


def _show_nodes(console: Console, plan: Plan, result: SimulationResult) -> None:
    predicted = {stage.node_id: stage.busy for stage in prediction_of(plan).stages}
    rows: list[list[str | Text]] = []
    for node in result.nodes[:_MAX_NODES]:
        num_stages = len(plan.clusters[node.cluster_id])
        total = sum(node.staleness)
        mean = sum(age * count for age, count in enumerate(node.staleness)) / total if total else 0
        rows.append(
            [
                str(node.node_id),
                f"{role_at(node.stage, num_stages)} of {node.cluster_id}",
                Text.assemble(bar(console, node.utilisation), " ", _share(node.utilisation)),
                units.percent(predicted[node.node_id]),
                _share(node.uplink),
                f"{mean:.2g}" if total else "-",
                str(len(node.staleness) - 1) if total else "-",
            ]
        )
    headings = ("node", "role", "computes", "predicted", "sends", "staleness", "most")
    console.print(columns(headings, rows, left="lll"))
    _say_more(console, len(result.nodes) - _MAX_NODES, "node")


def _show_links(console: Console, plan: Plan, links: Sequence[LinkResult]) -> None:
    predicted = {
        (link.source, link.target, link.traffic): link.load for link in prediction_of(plan).links
    }
    busiest = sorted(links, key=lambda each: -each.load)[:_MAX_LINKS]
    rows: list[list[str | Text]] = [
        [
            f"{link.source} to {link.target}",
            str(link.traffic),
            Text.assemble(bar(console, link.load), " ", _share(link.load)),
            _expected(predicted.get((link.source, link.target, link.traffic)), link.traffic),
            f"{link.num_messages:,}",
            units.size(link.num_bytes),
        ]
        for link in busiest
    ]
    headings = ("link", "traffic", "busy", "predicted", "messages", "bytes")
    console.print(columns(headings, rows, left="lll"))
    _say_more(console, len(links) - _MAX_LINKS, "less busy link")


def _expected(load: float | None, traffic: Traffic) -> str:
    """Of averaging the run's length decides, so there is nothing to compare."""
    return "-" if load is None or traffic is Traffic.AVERAGING else units.percent(load)


def _show_staleness(console: Console, result: SimulationResult) -> None:
    console.print(line(("Optimizer steps between a microbatch's weights and its update", EMPHASIS)))
    total = sum(result.staleness)
    shown = result.staleness[:_MAX_AGES]
    rows: list[list[str | Text]] = [
        [str(age), Text(_histogram(console, count / total)), units.percent(count / total)]
        for age, count in enumerate(shown)
    ]
    if len(result.staleness) > _MAX_AGES:
        rest = sum(result.staleness[_MAX_AGES:]) / total
        rows.append(["more", Text(_histogram(console, rest)), units.percent(rest)])
    console.print(indented(columns(("", "", ""), rows, left=" l")))


def _histogram(console: Console, share: float) -> str:
    width = min(40, max(10, console.width - 40))
    mark = "#" if not console.is_terminal else "━"
    return mark * max(round(width * share), 1 if share > 0 else 0)


def _show_failures(console: Console, plan: Plan, result: SimulationResult) -> None:
    if not result.failures:
        return
    console.print()
    console.print(line(("Failures", EMPHASIS)))
    for failure in result.failures:
        what = "ends" if failure.duration_s is None else f"is silent for {failure.duration_s:g} s"
        heading = f"{node_name(failure.node_id)} {what} at {failure.at_s:g} s: "
        console.print(indented(line((heading, FAILURE), failure.outcome)))
    if len(plan.clusters) > 1 and any(c.stopped_by is not None for c in result.clusters):
        console.print(
            indented(
                line(
                    "The other clusters go on in the simulation; in a real run they average with "
                    "the lost one and end as well.",
                )
            )
        )


def _share(share: float) -> Text:
    return Text(units.percent(share), level_style(share) if share >= 0.9 else "")


def _ratio(simulated: float, predicted: float) -> Text:
    """How far from the prediction; yellow beyond what both may be apart."""
    if predicted <= 0:
        return Text("")
    ratio = simulated / predicted
    return Text(f"({ratio:.3f}x)", WARNING if abs(ratio - 1) > _NEAR else GOOD)


def _say_more(console: Console, num_more: int, noun: str) -> None:
    if num_more > 0:
        console.print(
            indented(line((f"and {units.count(num_more, noun)} more; --json has all", DIM)))
        )
