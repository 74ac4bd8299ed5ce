"""Links as arrows: within a cluster between neighbours, between clusters as parts of rings."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement

from ravnest.cli.rendering import units
from ravnest.cli.rendering.picture.layout import Box, Layout
from ravnest.cli.rendering.picture.shapes import (
    EDGE,
    load_colour,
    load_width,
    path,
    text,
    titled,
)
from ravnest.plan.prediction import Traffic

_LANE = 9.0  # how far the arrows of two directions are from the line between two boxes
_RING_LANE = 0.32  # the same for rings, as a share of a box's width
_CLEARANCE = 3.0

DASHES = {Traffic.AVERAGING: "7 4", Traffic.PARAMETERS: "2 3"}
"""Of the curves; what goes between neighbours is drawn through."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """What goes from a node to another.

    Attributes:
        load: None when it is not known.
        num_bytes: None when it is not known.
    """

    source: int
    target: int
    traffic: Traffic
    load: float | None = None
    num_bytes: int | None = None
    takes_s: float | None = None

    @property
    def words(self) -> str:
        """Everything about it, for a tooltip."""
        words = f"node {self.source} -> {self.target}: {self.traffic}"
        if self.load is None or self.num_bytes is None or self.takes_s is None:
            return words
        return (
            f"{words}, {units.size(self.num_bytes)} in {units.duration(self.takes_s)}, "
            f"load {units.percent(self.load)}"
        )

    @property
    def colour(self) -> str:
        """By load; grey when that is unknown."""
        return EDGE if self.load is None else load_colour(self.load)

    @property
    def width(self) -> float:
        """Of its stroke, by load."""
        return load_width(self.load or 0.0)


def draw_arrow(parent: Element, arrow: Arrow, layout: Layout) -> None:
    """Draws one arrow between two boxes that are placed."""
    source, target = layout.boxes[arrow.source], layout.boxes[arrow.target]
    if arrow.traffic in (Traffic.ACTIVATIONS, Traffic.GRADIENTS) and _are_near(source, target):
        _draw_between_neighbours(parent, arrow, source, target, layout)
        return
    if source.y == target.y:
        _draw_over(parent, arrow, source, target)
    else:
        _draw_across(parent, arrow, source, target)


def _are_near(source: Box, target: Box) -> bool:
    return source.y == target.y or source.x == target.x


def _draw_between_neighbours(
    parent: Element, arrow: Arrow, source: Box, target: Box, layout: Layout
) -> None:
    lane = -_LANE if arrow.traffic is Traffic.ACTIVATIONS else _LANE
    group = titled(SubElement(parent, "g"), arrow.words)
    if source.y != target.y:  # the cluster goes on in the next line
        x = source.middle[0] + lane
        is_down = source.y < target.y
        start, end = (source.bottom, target.y) if is_down else (source.y, target.bottom)
        _draw_straight(group, arrow, (x, start), (x, end))
        return
    y = source.middle[1] + lane
    is_right = source.x < target.x
    start, end = (source.right, target.x) if is_right else (source.x, target.right)
    _draw_straight(group, arrow, (start, y), (end, y))
    if layout.metrics.has_labels and arrow.load is not None and arrow.num_bytes is not None:
        label = f"{units.size(arrow.num_bytes)}, {units.percent(arrow.load)}"
        beside = arrow.width / 2
        offset = -6 - beside if lane < 0 else 14 + beside
        text(group, (start + end) / 2, y + offset, label, size=10.5, anchor="middle")


def _draw_straight(
    group: Element, arrow: Arrow, start: tuple[float, float], end: tuple[float, float]
) -> None:
    (x0, y0), (x1, y1) = start, end
    step_x, step_y = _sign(x1 - x0), _sign(y1 - y0)
    tip = (x1 - step_x * _CLEARANCE, y1 - step_y * _CLEARANCE)
    size = _head_size(arrow)
    course = (
        f"M{x0 + step_x * _CLEARANCE:g} {y0 + step_y * _CLEARANCE:g}"
        f"L{tip[0] - step_x * size:g} {tip[1] - step_y * size:g}"
    )
    path(group, course, stroke=arrow.colour, stroke_width=f"{arrow.width:.2f}", fill="none")
    _draw_head(group, arrow, tip, (step_x, step_y))


def _draw_across(parent: Element, arrow: Arrow, source: Box, target: Box) -> None:
    """From one line of boxes to another: down on the left of the boxes, up on the right."""
    is_down = source.y < target.y
    lane = (-1 if is_down else 1) * _RING_LANE * source.width
    x0, x1 = source.middle[0] + lane, target.middle[0] + lane
    y0, y1 = (source.bottom, target.y) if is_down else (source.y, target.bottom)
    step = 1 if is_down else -1
    tip, foot = y1 - step * _CLEARANCE, y0 + step * _CLEARANCE
    end = tip - step * _head_size(arrow)
    bend = (foot + end) / 2
    course = f"M{x0:g} {foot:g}C{x0:g} {bend:g} {x1:g} {bend:g} {x1:g} {end:g}"
    _draw_curve(parent, arrow, course, (x1, tip), (0, step))


def _draw_over(parent: Element, arrow: Arrow, source: Box, target: Box) -> None:
    """Between boxes of one line that are no neighbours: an arc above those between."""
    x0, x1, y = source.middle[0], target.middle[0], source.y - _CLEARANCE
    end = y - _head_size(arrow)
    height = y - 26
    course = f"M{x0:g} {y:g}C{x0:g} {height:g} {x1:g} {height:g} {x1:g} {end:g}"
    _draw_curve(parent, arrow, course, (x1, y), (0, 1))


def _draw_curve(
    parent: Element, arrow: Arrow, course: str, tip: tuple[float, float], way: tuple[float, float]
) -> None:
    group = titled(SubElement(parent, "g", {"opacity": "0.75"}), arrow.words)
    path(
        group,
        course,
        stroke=arrow.colour,
        stroke_width=f"{arrow.width:.2f}",
        stroke_dasharray=DASHES.get(arrow.traffic, "none"),
        fill="none",
    )
    _draw_head(group, arrow, tip, way)


def _draw_head(
    group: Element, arrow: Arrow, tip: tuple[float, float], way: tuple[float, float]
) -> None:
    """A triangle that ends at `tip` and points the way (a unit vector along an axis)."""
    size = _head_size(arrow)
    (x, y), (dx, dy) = tip, way
    back_x, back_y = x - dx * size, y - dy * size
    side_x, side_y = dy * size * 0.55, dx * size * 0.55
    course = (
        f"M{x:g} {y:g}L{back_x + side_x:g} {back_y + side_y:g}"
        f"L{back_x - side_x:g} {back_y - side_y:g}Z"
    )
    path(group, course, fill=arrow.colour)


def _head_size(arrow: Arrow) -> float:
    return 6 + arrow.width


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
