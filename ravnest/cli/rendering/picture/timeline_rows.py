"""The rows of a timeline: what every node, and every link if asked for, does when. No pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ravnest.plan.model import Plan
from ravnest.plan.prediction import Traffic
from ravnest.simulate.result import SimulationResult, Timeline, Work

COLOURS = {
    Work.FORWARD: "#7fb2e5",
    Work.BACKWARD: "#8fcfa3",
    Work.BACKWARD_INPUT: "#6fc0b4",
    Work.BACKWARD_WEIGHT: "#bfd98a",
    Work.UPDATE: "#e2a32b",
    Work.AVERAGING: "#b79bd9",
}
LINK_COLOURS = {
    Traffic.ACTIVATIONS: "#4c8bd6",
    Traffic.GRADIENTS: "#4fa46a",
    Traffic.PARAMETERS: "#c9822b",
    Traffic.AVERAGING: "#8a63c4",
}
FAILED = "#d6402f"
_UNITS = {
    Work.FORWARD: "microbatch",
    Work.BACKWARD: "microbatch",
    Work.BACKWARD_INPUT: "microbatch",
    Work.BACKWARD_WEIGHT: "microbatch",
    Work.UPDATE: "step",
    Work.AVERAGING: "round",
}


@dataclass(frozen=True, slots=True)
class Box:
    """One thing in a row; `label` is left out where there is no room for it."""

    begin_s: float
    end_s: float
    colour: str
    words: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Boxes on one line; `starts_cluster` leaves a gap above it."""

    name: str
    boxes: tuple[Box, ...]
    height: float
    starts_cluster: bool = False


def rows_of(
    plan: Plan, result: SimulationResult, timeline: Timeline, end_s: float, *, with_links: bool
) -> Iterator[Row]:
    num_nodes = len(timeline.nodes)
    height = 26.0 if num_nodes <= 12 else 18.0 if num_nodes <= 40 else 9.0
    for cluster in plan.clusters:
        for index, node_id in enumerate(cluster):
            boxes = tuple(
                Box(
                    each.begin_s,
                    each.end_s,
                    COLOURS[each.work],
                    f"{each.work} of {_UNITS[each.work]} {each.number}",
                    str(each.number) if _UNITS[each.work] == "microbatch" else "",
                )
                for each in timeline.nodes[node_id]
                if each.begin_s < end_s and each.end_s > each.begin_s
            )
            failures = tuple(_failures(result, node_id, end_s))
            yield Row(f"node {node_id}", boxes + failures, height, starts_cluster=index == 0)
            if with_links:
                yield from _link_rows(timeline, node_id, end_s, min(height, 14.0))


def _failures(result: SimulationResult, node_id: int, end_s: float) -> Iterator[Box]:
    """On top of what the node was doing."""
    for failure in result.failures:
        if failure.node_id == node_id and failure.at_s < end_s:
            up_s = math.inf if failure.duration_s is None else failure.at_s + failure.duration_s
            words = "ends" if failure.duration_s is None else "silent"
            yield Box(failure.at_s, min(up_s, end_s), FAILED, words, words)


def _link_rows(timeline: Timeline, source: int, end_s: float, height: float) -> Iterator[Row]:
    for (start, target, traffic), sent in timeline.links.items():
        if start == source:
            boxes = tuple(
                Box(
                    each.begin_s,
                    each.end_s,
                    LINK_COLOURS[traffic],
                    f"{traffic}, message {each.number}",
                )
                for each in sent
                if each.begin_s < end_s and each.end_s > each.begin_s
            )
            yield Row(f"{traffic} to {target}", boxes, height)
