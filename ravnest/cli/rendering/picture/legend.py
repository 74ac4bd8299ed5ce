"""What the colours and lines of a picture mean."""

from __future__ import annotations

from collections.abc import Set
from xml.etree.ElementTree import Element, SubElement

from ravnest.cli.rendering.picture.arrows import DASHES
from ravnest.cli.rendering.picture.shapes import (
    EDGE,
    PAPER,
    load_colour,
    load_width,
    memory_colour,
    path,
    rectangle,
    text,
)
from ravnest.plan.prediction import Traffic

LEGEND_HEIGHT = 56.0
LEGEND_WIDTH = 660.0
_LOADS = (0.0, 0.25, 0.5, 0.75, 1.0)
_SHARES = (0.5, 0.8, 0.95)
_DASHED = {Traffic.AVERAGING: "averaging of clusters", Traffic.PARAMETERS: "shared parameters"}


def draw_legend(parent: Element, x: float, y: float, traffic: Set[Traffic]) -> None:
    """Draws it into a strip of `LEGEND_WIDTH` and `LEGEND_HEIGHT`.

    Args:
        traffic: what there is in the picture.
    """
    group = SubElement(parent, "g", {"transform": f"translate({x:g} {y:g})"})
    _draw_loads(group, 0, 14)
    _draw_memory(group, 330, 14)
    if Traffic.ACTIVATIONS in traffic:
        text(group, 0, 48, "upper arrow: activations, lower arrow: gradients", size=11)
    left = 330
    for kind, words in _DASHED.items():
        if kind in traffic:
            dashes = DASHES[kind]
            path(group, f"M{left} 44h34", stroke=EDGE, stroke_width="2", stroke_dasharray=dashes)
            text(group, left + 40, 48, words, size=11)
            left += 180


def _draw_loads(group: Element, x: float, y: float) -> None:
    text(group, x, y + 4, "load of a link", size=11)
    left = x + 88
    for number, load in enumerate(_LOADS):
        start = left + number * 30
        width = f"{load_width(load):.2f}"
        path(group, f"M{start:g} {y:g}h30", stroke=load_colour(load), stroke_width=width)
    text(group, left, y + 17, "0 %", size=9.5)
    text(group, left + 150, y + 17, "100 %", size=9.5, anchor="end")


def _draw_memory(group: Element, x: float, y: float) -> None:
    for number, share in enumerate(_SHARES):
        start = x + number * 46
        rectangle(group, start, y - 8, 38, 15, rx="3", fill=PAPER)
        rectangle(group, start, y - 8, 38 * share, 15, rx="3", fill=memory_colour(share))
        rectangle(group, start, y - 8, 38, 15, rx="3", fill="none", stroke=EDGE)
    text(group, x + 46 * len(_SHARES) + 4, y + 4, "predicted peak of offered memory", size=11)
