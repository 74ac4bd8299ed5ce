"""A what-if for people: before, after, factor; then every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from ravnest.cli.rendering import units
from ravnest.cli.rendering.comparison import Comparison, NodeComparison
from ravnest.cli.rendering.style import DIM, EMPHASIS, FAILURE, GOOD, columns, level_style, line
from ravnest.cli.rendering.view import StageView

_SAME = 0.005  # within half a percent nothing has changed that a person would act on


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Prints the figures of both plans, then where each node is and what it holds."""
    rows = [
        _row("samples/s", comparison.samples_per_s, units.number, is_more_better=True),
        _row("step time", comparison.step_time_s, units.duration, is_more_better=False),
        _row("samples per step", comparison.samples_per_step, _whole),
        _row("clusters", comparison.num_clusters, _whole),
    ]
    console.print(columns(("", "before", "after", "factor"), rows, left="l"))
    console.print()
    headings = ("node", "before", "after", "layers", "peak before", "after", "factor", "")
    nodes = [_node_row(node) for node in comparison.nodes]
    console.print(columns(headings, nodes, left=" ll    l"))


def _row(
    label: str,
    values: tuple[float | None, float | None],
    shown: Callable[[float], str],
    *,
    is_more_better: bool | None = None,
) -> Sequence[str | Text]:
    before, after = values
    texts = ["-" if value is None else shown(value) for value in values]
    if not before or after is None:
        return [label, *texts, ""]
    style = ""
    if abs(after / before - 1) > _SAME and is_more_better is not None:
        style = GOOD if (after > before) is is_more_better else FAILURE
    return [label, *texts, line((units.factor(before, after), style))]


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _node_row(node: NodeComparison) -> Sequence[str | Text]:
    before, after = node.before, node.after
    factor = ""
    if before is not None and after is not None:
        factor = units.factor(before.peak_bytes, after.peak_bytes)
    return [
        line((str(node.node_id), EMPHASIS if node.is_moved else "")),
        _place(before),
        _place(after),
        _layers(before, after),
        _peak(before),
        _peak(after),
        factor,
        line(("changed" if node.is_moved else "", DIM)),
    ]


def _place(view: StageView | None) -> Text:
    if view is None:
        return line(("not used", DIM))
    return line(f"{view.role} of {view.stage.cluster_id}")


def _layers(before: StageView | None, after: StageView | None) -> str:
    """How many, before and after; once when that is the same."""
    counts = ["0" if view is None else str(len(view.layers)) for view in (before, after)]
    return counts[0] if counts[0] == counts[1] else " -> ".join(counts)


def _peak(view: StageView | None) -> Text:
    if view is None:
        return line("-")
    return line((units.size(view.peak_bytes), level_style(view.memory_share)))
