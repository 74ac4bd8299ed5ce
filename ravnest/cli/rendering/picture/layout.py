"""Where everything of a picture is: a panel per cluster, a box per node, lines that wrap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ravnest.cli.rendering.view import ClusterView

MARGIN = 24.0
_PANEL_GAP_X, _PANEL_GAP_Y = 40.0, 26.0
_MAX_WIDTH = 2200.0
_MOST_ROOMY_NODES, _MOST_ROOMY_CLUSTERS = 24, 6


@dataclass(frozen=True, slots=True)
class Metrics:
    """Sizes in user units, about a pixel each.

    Attributes:
        per_line: boxes beside each other before a cluster goes on in the next line.
        label: width of the column for the cluster's figures, left of its boxes, where no ring runs.
        least_height: of a panel, for those figures.
        has_labels: whether there is room for the figures of each link.
    """

    box_width: float
    box_height: float
    gap_x: float
    gap_y: float
    per_line: int
    padding: float
    label: float
    least_height: float
    has_labels: bool


ROOMY = Metrics(140, 76, 104, 48, 5, 18, 190, 138, True)
COMPACT = Metrics(104, 46, 30, 26, 10, 12, 100, 0, False)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle by its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        """Of both sides."""
        return self.x + self.width / 2, self.y + self.height / 2

    @property
    def right(self) -> float:
        """The x of the right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """The y of the lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of panels, in order of cluster, and of boxes by node id.

    Attributes:
        width: of the whole, margins included.
        bottom: the y below all panels.
    """

    metrics: Metrics
    panels: tuple[Box, ...]
    boxes: dict[int, Box]
    width: float
    bottom: float


def place(clusters: Sequence[ClusterView], top: float) -> Layout:
    """Places clusters below `top` and below each other, in several columns where they are many."""
    num_nodes = sum(len(cluster.stages) for cluster in clusters)
    is_roomy = num_nodes <= _MOST_ROOMY_NODES and len(clusters) <= _MOST_ROOMY_CLUSTERS
    metrics = ROOMY if is_roomy else COMPACT
    sizes = [_panel_size(len(cluster.stages), metrics) for cluster in clusters]
    # Rings that run from column to column cross the figures of clusters: only where it must be.
    panels = _in_columns(sizes, 1, top) if is_roomy else _best_columns(sizes, top)
    boxes = {
        view.stage.node_id: box
        for cluster, panel in zip(clusters, panels, strict=True)
        for view, box in zip(
            cluster.stages, _boxes(panel, len(cluster.stages), metrics), strict=True
        )
    }
    width = max(panel.right for panel in panels) + MARGIN
    return Layout(metrics, tuple(panels), boxes, width, max(panel.bottom for panel in panels))


def _panel_size(num_stages: int, metrics: Metrics) -> tuple[float, float]:
    per_line = min(num_stages, metrics.per_line)
    num_lines = math.ceil(num_stages / metrics.per_line)
    boxes = per_line * metrics.box_width + (per_line - 1) * metrics.gap_x
    lines = num_lines * metrics.box_height + (num_lines - 1) * metrics.gap_y
    width = metrics.label + boxes + 2 * metrics.padding
    return width, max(metrics.least_height, lines + 2 * metrics.padding)


def _best_columns(sizes: Sequence[tuple[float, float]], top: float) -> list[Box]:
    """As few columns as make the whole no higher than wide, within a greatest width."""
    best = _in_columns(sizes, 1, top)
    for num_columns in range(2, len(sizes) + 1):
        width, height = _extent(best)
        if height - top <= width:
            break
        wider = _in_columns(sizes, num_columns, top)
        if _extent(wider)[0] > _MAX_WIDTH:
            break
        best = wider
    return best


def _extent(panels: Sequence[Box]) -> tuple[float, float]:
    return max(panel.right for panel in panels), max(panel.bottom for panel in panels)


def _in_columns(sizes: Sequence[tuple[float, float]], num_columns: int, top: float) -> list[Box]:
    per_column = math.ceil(len(sizes) / num_columns)
    panels: list[Box] = []
    x = MARGIN
    for start in range(0, len(sizes), per_column):
        column = sizes[start : start + per_column]
        width, y = max(size[0] for size in column), top
        for _, height in column:
            panels.append(Box(x, y, width, height))
            y += height + _PANEL_GAP_Y
        x += width + _PANEL_GAP_X
    return panels


def _boxes(panel: Box, num_stages: int, metrics: Metrics) -> list[Box]:
    """Lines that run to and fro, so that neighbours in the cluster are neighbours here."""
    found = []
    left = panel.x + metrics.padding + metrics.label
    for index in range(num_stages):
        row, column = divmod(index, metrics.per_line)
        if row % 2 == 1:
            column = metrics.per_line - 1 - column
        x = left + column * (metrics.box_width + metrics.gap_x)
        y = panel.y + metrics.padding + row * (metrics.box_height + metrics.gap_y)
        found.append(Box(x, y, metrics.box_width, metrics.box_height))
    return found
