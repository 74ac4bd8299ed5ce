"""A plan as SVG: clusters as panels, nodes as boxes filled by memory, links coloured by load."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element, SubElement, tostring

from ravnest.cli.rendering import units
from ravnest.cli.rendering.picture.arrows import Arrow, draw_arrow
from ravnest.cli.rendering.picture.layout import MARGIN, Box, Layout, Metrics, place
from ravnest.cli.rendering.picture.legend import LEGEND_HEIGHT, LEGEND_WIDTH, draw_legend
from ravnest.cli.rendering.picture.shapes import (
    EDGE,
    INK,
    PAPER,
    SHADE,
    document,
    memory_colour,
    rectangle,
    text,
    titled,
)
from ravnest.cli.rendering.view import (
    ClusterView,
    StageView,
    clusters_of,
    unused_by_reason,
)
from ravnest.plan.model import Plan
from ravnest.plan.prediction import Traffic

_TITLE_HEIGHT = 74.0
_LINE = 18.0
_MAX_REASONS = 4
_MAX_REASON_LENGTH = 150
_LABEL_LENGTH, _BOTTLENECK_LINES = 27, 3


def draw_plan(plan: Plan) -> str:
    """The picture as a document of its own; names in it are escaped, nothing is loaded."""
    clusters = clusters_of(plan)
    layout = place(clusters, MARGIN + _TITLE_HEIGHT)
    reasons = _reasons(plan)
    width = max(layout.width, LEGEND_WIDTH + 2 * MARGIN)
    words_top = layout.bottom + 20
    legend_top = words_top + _LINE * len(reasons) + (10 if reasons else 0)
    height = legend_top + LEGEND_HEIGHT + MARGIN
    root = document(width, height, f"Plan of {plan.model}")
    _draw_defs(root, layout.metrics)
    _draw_title(root, plan)
    for cluster, panel in zip(clusters, layout.panels, strict=True):
        _draw_panel(root, cluster, panel, layout)
    arrows = _arrows(plan)
    for arrow in arrows:
        draw_arrow(root, arrow, layout)
    for cluster in clusters:
        for view in cluster.stages:
            _draw_node(root, view, layout)
    for number, reason in enumerate(reasons):
        text(root, MARGIN, words_top + _LINE * (number + 0.8), reason)
    draw_legend(root, MARGIN, legend_top, {arrow.traffic for arrow in arrows})
    for element in root:
        element.tail = "\n"
    return tostring(root, encoding="unicode") + "\n"


def _draw_defs(root: Element, metrics: Metrics) -> None:
    """What cuts the memory fill to the box's round corners; in the coordinates of its user."""
    clip = SubElement(SubElement(root, "defs"), "clipPath", {"id": "box"})
    rectangle(clip, 0, 0, metrics.box_width, metrics.box_height, rx="8")


def _draw_title(root: Element, plan: Plan) -> None:
    model = plan.model.rpartition(".")[2]
    nodes = f"{len(plan.stages):,} of {units.count(len(plan.nodes), 'node')}"
    title = f"{model} on {nodes} in {units.count(len(plan.clusters), 'cluster')}"
    text(root, MARGIN, MARGIN + 20, title, size=20, is_bold=True)
    if (predicted := plan.prediction) is None:
        return
    words = f"{units.number(predicted.samples_per_s)} samples/s"
    if len(plan.clusters) > 1:
        steps = units.count(predicted.run.steps_per_round, "step")
        words += f", averaging {units.duration(predicted.averaging_s)} every {steps}"
    text(root, MARGIN, MARGIN + 44, words, size=14)


def _draw_panel(root: Element, cluster: ClusterView, panel: Box, layout: Layout) -> None:
    rectangle(
        root,
        panel.x,
        panel.y,
        panel.width,
        panel.height,
        rx="12",
        fill=SHADE,
        fill_opacity="0.1",
        stroke=SHADE,
        stroke_opacity="0.35",
    )
    x, y = panel.x + layout.metrics.padding, panel.y + layout.metrics.padding + 13
    text(root, x, y, f"Cluster {cluster.cluster_id}", size=13, is_bold=True)
    for number, words in enumerate(_figures(cluster, has_room=layout.metrics.has_labels)):
        text(root, x, y + 19 + 16 * number, words, size=11.5)


def _figures(cluster: ClusterView, *, has_room: bool) -> list[str]:
    """What stands below the name of a cluster, a line each."""
    if (predicted := cluster.prediction) is None:
        return []
    rate = f"{units.number(predicted.samples_per_s)} samples/s"
    if not has_room:
        return [rate]
    bottleneck = textwrap.wrap(
        f"bottleneck: {predicted.bottleneck}",
        _LABEL_LENGTH,
        max_lines=_BOTTLENECK_LINES,
        placeholder=" ...",
    )
    return [
        rate,
        f"{units.duration(predicted.step_time_s)} per step",
        f"bubble {units.percent(predicted.bubble)}",
        *bottleneck,
    ]


def _draw_node(root: Element, view: StageView, layout: Layout) -> None:
    box, metrics, predicted = layout.boxes[view.stage.node_id], layout.metrics, view.prediction
    group = SubElement(root, "g", {"transform": f"translate({box.x:g} {box.y:g})"})
    titled(group, _node_words(view))
    rectangle(group, 0, 0, box.width, box.height, rx="8", fill=PAPER)
    filled = box.width * min(1.0, view.memory_share)
    colour = memory_colour(view.memory_share)
    rectangle(group, 0, 0, filled, box.height, fill=colour, clip_path="url(#box)")
    rectangle(group, 0, 0, box.width, box.height, rx="8", fill="none", stroke=EDGE)
    middle = box.width / 2
    name = f"node {view.stage.node_id}"
    memory = f"{units.size(view.peak_bytes)} of {units.size(view.node.memory_bytes)}"
    if not metrics.has_labels:
        text(group, middle, 19, name, colour=INK, anchor="middle", is_bold=True)
        text(group, middle, 35, memory, size=9.5, colour=INK, anchor="middle")
        return
    text(group, middle, 22, f"{name}, {view.role}", size=13, colour=INK, anchor="middle").set(
        "font-weight", "600"
    )
    text(group, middle, 42, memory, size=11, colour=INK, anchor="middle")
    layers = units.count(len(view.layers), "layer")
    work = f", busy {units.percent(predicted.busy)}" if predicted else ""
    text(group, middle, 60, f"{layers}{work}", size=11, colour=INK, anchor="middle")


def _node_words(view: StageView) -> str:
    words = [
        f"node {view.stage.node_id} ({view.node.address}), {view.role}",
        units.count(len(view.layers), "layer"),
        f"memory {units.size(view.peak_bytes)} of {units.size(view.node.memory_bytes)}",
    ]
    if (predicted := view.prediction) is not None:
        words.append(f"forward {units.duration(predicted.forward_s)}")
        words.append(f"backward {units.duration(predicted.backward_s)}")
        words.append(f"busy {units.percent(predicted.busy)}")
    return "\n".join(words)


def _arrows(plan: Plan) -> list[Arrow]:
    """Rings first, so that they lie below; by the plan's structure when nothing is predicted."""
    if plan.prediction is not None:
        found = [
            Arrow(
                link.source,
                link.target,
                link.traffic,
                link.load,
                link.num_bytes,
                link.seconds + link.latency_s,
            )
            for link in plan.prediction.links
        ]
    else:
        found = [*_ring_arrows(plan), *_pipeline_arrows(plan.clusters)]
    return sorted(found, key=lambda arrow: arrow.traffic is not Traffic.AVERAGING)


def _ring_arrows(plan: Plan) -> list[Arrow]:
    pairs = {
        (ring.members[rank], ring.members[(rank + 1) % len(ring.members)])
        for ring in plan.rings
        if len(ring.members) > 1
        for rank in range(len(ring.members))
    }
    return [Arrow(source, target, Traffic.AVERAGING) for source, target in sorted(pairs)]


def _pipeline_arrows(clusters: Sequence[Sequence[int]]) -> list[Arrow]:
    found = []
    for cluster in clusters:
        for before, after in pairwise(cluster):
            found.append(Arrow(before, after, Traffic.ACTIVATIONS))
            found.append(Arrow(after, before, Traffic.GRADIENTS))
    return found


def _reasons(plan: Plan) -> list[str]:
    """A line per reason for which nodes are not used, shortened to what fits."""
    lines = [
        f"Not used: {units.nodes(ids)}: {reason}" for reason, ids in unused_by_reason(plan).items()
    ]
    shown = [
        line if len(line) <= _MAX_REASON_LENGTH else f"{line[: _MAX_REASON_LENGTH - 3]}..."
        for line in lines[:_MAX_REASONS]
    ]
    if len(lines) > _MAX_REASONS:
        shown.append(f"and {len(lines) - _MAX_REASONS} more reasons for nodes that are not used")
    return shown
