"""A plan for people: clusters with their stages, links, the whole, what was assumed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ravnest.cli.rendering import units
from ravnest.cli.rendering.memory_text import show_memory_parts
from ravnest.cli.rendering.style import (
    DIM,
    EMPHASIS,
    GOOD,
    WARNING,
    bar,
    bullets,
    columns,
    indented,
    level_style,
    line,
)
from ravnest.cli.rendering.view import (
    ClusterView,
    StageView,
    averaging_share,
    clusters_of,
    gap,
    links_by_load,
    unused_by_reason,
)
from ravnest.plan.model import Plan
from ravnest.plan.prediction import LinkPrediction, PlannedRun, Prediction, Traffic

_MAX_LINKS = 12
_PER = {
    Traffic.ACTIVATIONS: "microbatch",
    Traffic.GRADIENTS: "microbatch",
    Traffic.PARAMETERS: "step",
    Traffic.AVERAGING: "round",
}
_HEADINGS = ("node", "role", "layers", "params", "forward", "backward", "busy", "memory")


def show_plan(console: Console, plan: Plan, *, with_memory: bool = False) -> None:
    """Prints a plan.

    Args:
        with_memory: also what each node's memory is for.
    """
    clusters = clusters_of(plan)
    prediction = plan.prediction
    console.print(_title(plan))
    if prediction is None:
        console.print(line(("This plan has no predictions; run clusterize again.", WARNING)))
    else:
        console.print(line((run_in_words(prediction.run), DIM)))
    for cluster in clusters:
        console.print()
        _show_cluster(console, cluster)
    if with_memory:
        show_memory_parts(console, clusters)
    if prediction is not None:
        _show_links(console, prediction.links)
        _show_compressions(console, prediction)
    console.print()
    if prediction is not None:
        _show_whole(console, prediction, len(clusters))
        bullets(console, "Assumed, for it was neither measured nor said", prediction.assumed)
    reasons = unused_by_reason(plan)
    bullets(console, "Not used", [f"{units.nodes(ids)}: {why}" for why, ids in reasons.items()])


def run_in_words(run: PlannedRun) -> str:
    """The settings that a prediction is for, in one line."""
    samples = units.count(run.samples_per_microbatch, "sample")
    parts = [
        f"schedule {run.schedule}",
        f"steps of {run.update_frequency} x {samples}",
        run.optimizer.rpartition(".")[2],
    ]
    if run.compression != "none":
        parts.append(f"{run.compression} on the wire")
    if run.recompute:
        parts.append("activations recomputed")
    return ", ".join(parts)


def _title(plan: Plan) -> Text:
    used = f"{len(plan.stages):,} of {units.count(len(plan.nodes), 'node')}"
    title = (
        f"{plan.model.rpartition('.')[2]} on {used} in {units.count(len(plan.clusters), 'cluster')}"
    )
    if plan.prediction is None:
        return line((title, EMPHASIS))
    rate = f"{units.number(plan.prediction.samples_per_s)} samples/s"
    return line((f"{title}: ", EMPHASIS), (rate, f"{EMPHASIS} {GOOD}"))


def _show_cluster(console: Console, cluster: ClusterView) -> None:
    heading = line((f"Cluster {cluster.cluster_id}", EMPHASIS))
    if (predicted := cluster.prediction) is not None:
        heading.append(
            f": {units.number(predicted.samples_per_s)} samples/s, "
            f"{units.duration(predicted.step_time_s)} per step, "
            f"bubble {units.percent(predicted.bubble)}"
        )
    console.print(heading)
    if predicted is not None:
        console.print(indented(line(("bottleneck: ", DIM), predicted.bottleneck)))
    console.print(indented(_stage_table(console, cluster.stages)))


def _stage_table(console: Console, stages: Sequence[StageView]) -> Table:
    table = columns(_HEADINGS, [_stage_row(console, stage) for stage in stages], left=" l")
    table.columns[-1].justify = "left"
    table.columns[-1].no_wrap = True
    widths = (4, 4, 6, 7, 7, 8, 5)  # alike in all clusters
    for column, width in zip(table.columns, widths, strict=False):
        column.min_width = width
        column.no_wrap = True
    table.padding = (0, 1, 0, 0)
    return table


def _stage_row(console: Console, view: StageView) -> list[str | Text]:
    predicted = view.prediction
    forward, backward, busy, params = "-", "-", "-", "-"
    if predicted is not None:
        forward, backward = map(units.duration, (predicted.forward_s, predicted.backward_s))
        busy = units.percent(predicted.busy)
        params = units.size(predicted.memory.parameters)
    offered = units.size(view.node.memory_bytes)
    share = view.memory_share
    memory = line(bar(console, share), " ", (units.size(view.peak_bytes), level_style(share)))
    memory.append(f" of {offered}")
    return [
        str(view.stage.node_id),
        str(view.role),
        str(len(view.layers)),
        params,
        forward,
        backward,
        busy,
        memory,
    ]


def _show_links(console: Console, links: Sequence[LinkPrediction]) -> None:
    if not links:
        return
    shown = links_by_load(links)[:_MAX_LINKS]
    console.print()
    rows = [_link_row(console, link) for link in shown]
    headings = ("link", "carries", "bytes", "each", "takes", "load")
    console.print(columns(headings, rows, left="ll l l"))
    if hidden := len(links) - len(shown):
        least = units.percent(shown[-1].load)
        console.print(line((f"and {hidden:,} more with at most {least} load; --json has all", DIM)))


def _show_compressions(console: Console, prediction: Prediction) -> None:
    """What "auto" does on each link, or would do where it is not asked for and does anything."""
    is_asked = prediction.run.compression == "auto"
    chosen = [each for each in prediction.compressions if is_asked or each.compression != "none"]
    heading = 'compression="auto"' if is_asked else 'compression="auto" would choose'
    rows = [
        f"node {each.source} - node {each.target}: {each.compression}; {each.reason}"
        for each in chosen[:_MAX_LINKS]
    ]
    if hidden := len(chosen) - len(rows):
        rows.append(f"and on {hidden:,} links more; --json has all")
    bullets(console, heading, rows)


def _link_row(console: Console, link: LinkPrediction) -> list[str | Text]:
    share = line(bar(console, link.load), " ", (units.percent(link.load), level_style(link.load)))
    return [
        f"node {link.source} -> {link.target}",
        str(link.traffic),
        units.size(link.num_bytes),
        _PER[link.traffic],
        units.duration(link.seconds + link.latency_s),
        share,
    ]


def _show_whole(console: Console, prediction: Prediction, num_clusters: int) -> None:
    run = prediction.run
    if num_clusters > 1:
        console.print(
            line(
                ("Averaging ", EMPHASIS),
                f"takes {units.duration(prediction.averaging_s)} every "
                f"{units.count(run.steps_per_round, 'step')}: "
                f"costs {units.percent(averaging_share(prediction))} of the samples/s",
            )
        )
    console.print(line(("Quality   ", EMPHASIS), quality_in_words(prediction)))


def quality_in_words(prediction: Prediction) -> str:
    """How good the plan is, and what is known about that."""
    bound = units.number(prediction.upper_bound_samples_per_s)
    planned = units.number(prediction.planned_samples_per_s)
    words = f"planned for {planned} samples/s, upper bound {bound}"
    if prediction.is_optimal:
        return f"the best plan there is; {words}"
    return f"{words}, gap {units.percent(gap(prediction))}"
