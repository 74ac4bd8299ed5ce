"""A simulated run as SVG: a row per node, and per link if asked for, over an axis of time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from ravnest.cli.rendering import units
from ravnest.cli.rendering.picture.shapes import (
    INK,
    SHADE,
    WORDS,
    document,
    path,
    rectangle,
    text,
    titled,
)
from ravnest.cli.rendering.picture.timeline_rows import (
    COLOURS,
    FAILED,
    LINK_COLOURS,
    Box,
    Row,
    rows_of,
)
from ravnest.plan.model import Plan
from ravnest.simulate.result import SimulationResult, Timeline, Work

MAX_ROWS = 400
_MARGIN, _TITLE_HEIGHT, _AXIS_HEIGHT, _LEGEND_HEIGHT = 24.0, 60.0, 30.0, 40.0
_CLUSTER_GAP = 10.0
_MIN_WIDTH, _MAX_WIDTH = 900.0, 2600.0
_BOX_WIDTH = 17.0  # of the shortest usual box, where there is room
_TITLED_WIDTH = 4.0  # narrower boxes are drawn together and have no words of their own
_LETTER_WIDTH = 6.2


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where the rows are drawn: pixels of time from `left` on, `width` of them."""

    left: float
    width: float
    end_s: float

    def x(self, time_s: float) -> float:
        return self.left + self.width * min(time_s, self.end_s) / self.end_s


def draw_timeline(
    plan: Plan, result: SimulationResult, num_steps: int, *, with_links: bool = False
) -> str:
    """The picture as a document of its own.

    Args:
        result: of a run with a timeline.
        num_steps: optimizer steps to draw, from the first one on.
    """
    timeline = result.timeline
    assert timeline is not None, "the simulation was run without a timeline"
    end_s = _end(timeline, num_steps)
    rows = list(rows_of(plan, result, timeline, end_s, with_links=with_links))
    shown = rows[:MAX_ROWS]
    left = _MARGIN + 12 + _LETTER_WIDTH * max(len(row.name) for row in shown)
    frame = _Frame(left, _width(shown, end_s), end_s)
    top = _MARGIN + _TITLE_HEIGHT
    bottom = top + sum(row.height + _CLUSTER_GAP * row.starts_cluster for row in shown)
    width, height = left + frame.width + _MARGIN, bottom + _AXIS_HEIGHT + _LEGEND_HEIGHT
    root = document(width, height, f"Simulated run of {plan.model}")
    _draw_title(root, plan, result, min(num_steps, result.num_steps), len(rows) - len(shown))
    _draw_axis(root, frame, top, bottom)
    y = top
    for row in shown:
        y += _CLUSTER_GAP * row.starts_cluster
        _draw_row(root, row, frame, y)
        y += row.height
    works = {each.work for intervals in timeline.nodes.values() for each in intervals}
    _draw_legend(root, _MARGIN, bottom + _AXIS_HEIGHT + 16, works, with_links=with_links)
    for element in root:
        element.tail = "\n"
    return tostring(root, encoding="unicode") + "\n"


def _end(timeline: Timeline, num_steps: int) -> float:
    """When the last node has made so many steps, or everything has happened."""
    updates = (
        [each.end_s for each in intervals if each.work is Work.UPDATE]
        for intervals in timeline.nodes.values()
    )
    ends = [times[min(num_steps, len(times)) - 1] for times in updates if times]
    everything = [intervals[-1].end_s for intervals in timeline.nodes.values() if intervals]
    return max(ends or everything, default=0.0) or 1.0


def _width(rows: Sequence[Row], end_s: float) -> float:
    """Enough for the label of a short box, within limits."""
    lengths = sorted(box.end_s - box.begin_s for row in rows for box in row.boxes if box.label)
    usual_s = lengths[len(lengths) // 10] if lengths else end_s
    wanted = _BOX_WIDTH * end_s / usual_s if usual_s > 0 else _MAX_WIDTH
    return min(_MAX_WIDTH, max(_MIN_WIDTH, wanted))


def _draw_title(
    root: Element, plan: Plan, result: SimulationResult, num_steps: int, num_hidden: int
) -> None:
    clusters = units.count(len(plan.clusters), "cluster")
    nodes = units.count(len(plan.stages), "node")
    title = f"{plan.model.rpartition('.')[2]} on {nodes} in {clusters}, simulated"
    text(root, _MARGIN, _MARGIN + 16, title, size=18, is_bold=True)
    words = f"the first {num_steps} of {units.count(result.num_steps, 'optimizer step')}"
    words += f"; {units.number(result.samples_per_s)} samples/s in the steady state"
    if num_hidden:
        words += f"; {num_hidden:,} more rows are not shown"
    text(root, _MARGIN, _MARGIN + 38, words, size=13)


def _draw_axis(root: Element, frame: _Frame, top: float, bottom: float) -> None:
    group = SubElement(root, "g")
    tick_s = tick_length(frame.end_s, max(2, int(frame.width / 110)))
    for number in range(int(frame.end_s / tick_s + 1e-9) + 1):
        x = frame.x(number * tick_s)
        path(group, f"M{x:.1f} {top:g}V{bottom + 4:g}", stroke=SHADE, stroke_opacity="0.35")
        words = f"{number * tick_s:.6g} s"
        text(group, round(x, 1), bottom + 18, words, size=11, anchor="middle")


def tick_length(length_s: float, most: int) -> float:
    """The smallest of 1, 2, 5, 10, ... that divides a length into at most so many pieces."""
    scale = 10.0 ** math.floor(math.log10(length_s / most))
    return next(scale * step for step in (1, 2, 5, 10, 20) if length_s / (scale * step) <= most)


def _draw_row(root: Element, row: Row, frame: _Frame, y: float) -> None:
    group = SubElement(root, "g")
    room = row.height - (2 if row.height > 9 else 1)
    size = min(12.0, row.height - 1)
    text(group, frame.left - 8, y + room / 2 + size * 0.36, row.name, size=size, anchor="end")
    rectangle(group, frame.left, y, frame.width, room, fill=SHADE, fill_opacity="0.13")
    narrow: dict[str, list[tuple[float, float]]] = {}
    for box in row.boxes:
        begin, end = frame.x(box.begin_s), frame.x(box.end_s)
        if end - begin < _TITLED_WIDTH:
            narrow.setdefault(box.colour, []).append((begin, end))
            continue
        _draw_box(group, box, begin, end, y, room)
    for colour, spans in narrow.items():
        course = "".join(
            f"M{begin:.2f} {y:g}h{end - begin:.2f}v{room:g}h{begin - end:.2f}z"
            for begin, end in _joined(spans)
        )
        path(group, course, fill=colour)


def _draw_box(group: Element, box: Box, begin: float, end: float, y: float, room: float) -> None:
    # A hairline of background keeps neighbours apart.
    element = rectangle(
        group, round(begin, 2), y, round(max(end - begin - 0.6, 0.5), 2), room, fill=box.colour
    )
    seconds = units.duration(box.end_s - box.begin_s)
    titled(element, f"{box.words}\n{box.begin_s:.6g} s, for {seconds}")
    if box.label and end - begin >= _LETTER_WIDTH * len(box.label) + 4 and room >= 12:
        middle = round((begin + end) / 2, 1)
        text(group, middle, y + room / 2 + 4, box.label, size=11, colour=INK, anchor="middle")


def _joined(spans: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Spans in order, those joined that no eye could tell apart."""
    begin, end = spans[0]
    for following in spans[1:]:
        if following[0] - end < 0.2:
            end = following[1]
            continue
        yield begin, end
        begin, end = following
    yield begin, end


def _draw_legend(root: Element, x: float, y: float, works: Set[Work], *, with_links: bool) -> None:
    group = SubElement(root, "g")
    entries = [(str(work), colour) for work, colour in COLOURS.items() if work in works]
    entries += [("failed", FAILED), ("idle", "")]
    if with_links:
        entries += [(f"sends {traffic}", colour) for traffic, colour in LINK_COLOURS.items()]
    for words, colour in entries:
        if colour:
            rectangle(group, x, y - 10, 14, 12, fill=colour)
        else:
            rectangle(group, x, y - 10, 14, 12, fill=SHADE, fill_opacity="0.13", stroke=WORDS)
        text(group, x + 19, y, words, size=11.5)
        x += 34 + _LETTER_WIDTH * len(words)
