"""What the memory of each node is for: parts as rows, nodes as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from rich.console import Console

from ravnest.cli.rendering.style import EMPHASIS, columns, line
from ravnest.cli.rendering.units import number
from ravnest.cli.rendering.view import ClusterView, StageView
from ravnest.plan.prediction import MemoryBudget

PARTS = tuple(field.name for field in fields(MemoryBudget))
_LABEL_WIDTH = 15
_COLUMN_WIDTH = 11


def show_memory_parts(console: Console, clusters: Sequence[ClusterView]) -> None:
    """Prints the parts of every node's peak in MB, as many nodes side by side as fit."""
    views = [view for cluster in clusters for view in cluster.stages if view.prediction is not None]
    at_once = max(1, (console.width - _LABEL_WIDTH) // _COLUMN_WIDTH)
    for start in range(0, len(views), at_once):
        console.print()
        console.print(line(("Memory in MB", EMPHASIS)))
        shown = views[start : start + at_once]
        headings = ("", *(f"node {view.stage.node_id}" for view in shown))
        console.print(columns(headings, _rows(shown), left="l"))


def _rows(views: Sequence[StageView]) -> list[list[str]]:
    budgets = [view.prediction.memory for view in views if view.prediction is not None]
    rows = [
        [part, *(_megabytes(getattr(budget, part)) for budget in budgets)]
        for part in PARTS
        if any(getattr(budget, part) for budget in budgets)
    ]
    rows.append(["peak", *(_megabytes(budget.total) for budget in budgets)])
    rows.append(["offered", *(_megabytes(view.node.memory_bytes) for view in views)])
    return rows


def _megabytes(num_bytes: int) -> str:
    return number(num_bytes / 1e6)
