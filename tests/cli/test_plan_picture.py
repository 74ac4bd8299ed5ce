"""The picture of a plan: well-formed, complete, nothing on top of something else."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from xml.etree import ElementTree

import pytest

from ravnest.cli.rendering.picture import draw_plan
from ravnest.cli.rendering.picture.layout import place
from ravnest.cli.rendering.picture.shapes import load_colour, load_width
from ravnest.cli.rendering.view import clusters_of
from ravnest.plan.model import Plan

SVG = "{http://www.w3.org/2000/svg}"
SHAPES = [
    ((0,),),
    ((0, 1, 2), (3, 4)),
    tuple(tuple(range(4 * i, 4 * i + 4)) for i in range(25)),
    (tuple(range(50)), tuple(range(50, 100))),
    tuple((i,) for i in range(100)),
    (tuple(range(100)),),
]


def _words(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("clusters", SHAPES)
def test_every_node_and_link_is_in_the_picture(
    plan_with: Callable[..., Plan], clusters: tuple[tuple[int, ...], ...]
) -> None:
    plan = plan_with(clusters)
    assert plan.prediction is not None
    root = ElementTree.fromstring(draw_plan(plan))
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    nodes = [title for title in titles if title.startswith("node ") and "memory" in title]
    assert len(nodes) == len(plan.stages)
    links = {title.partition(",")[0] for title in titles if " -> " in title}
    assert links == {
        f"node {link.source} -> {link.target}: {link.traffic}" for link in plan.prediction.links
    }
    names = [f"Cluster {number}" for number in range(len(clusters))]
    assert [words for words in _words(root) if words.startswith("Cluster ")] == names


@pytest.mark.parametrize("clusters", SHAPES)
def test_nothing_overlaps_and_all_is_inside(
    plan_with: Callable[..., Plan], clusters: tuple[tuple[int, ...], ...]
) -> None:
    plan = plan_with(clusters)
    root = ElementTree.fromstring(draw_plan(plan))
    layout = place(clusters_of(plan), 100)
    assert set(layout.boxes) == {stage.node_id for stage in plan.stages}
    for group in (layout.boxes.values(), layout.panels):
        for a, b in itertools.combinations(group, 2):
            is_apart = a.right < b.x or b.right < a.x or a.bottom < b.y or b.bottom < a.y
            assert is_apart, f"{a} and {b} overlap"
    for stage in plan.stages:
        box, panel = layout.boxes[stage.node_id], layout.panels[stage.cluster_id]
        assert panel.x < box.x < box.right < panel.right
        assert panel.y < box.y < box.bottom < panel.bottom
    assert layout.width <= float(root.attrib["width"]) <= 2300
    assert layout.bottom < float(root.attrib["height"])


def test_neighbours_of_a_long_cluster_stay_neighbours(plan_with: Callable[..., Plan]) -> None:
    plan = plan_with((tuple(range(100)),))
    boxes = place(clusters_of(plan), 0).boxes
    for a, b in itertools.pairwise(boxes[i] for i in range(100)):
        assert (a.x == b.x) != (a.y == b.y), "beside or below each other"


def test_a_plan_without_predictions_is_drawn_by_its_structure(
    plan_with: Callable[..., Plan],
) -> None:
    root = ElementTree.fromstring(draw_plan(plan_with(has_prediction=False)))
    titles = {element.text for element in root.iter(f"{SVG}title")}
    assert {"node 0 -> 1: activations", "node 1 -> 0: gradients"} <= titles
    assert {"node 0 -> 3: averaging", "node 4 -> 1: averaging"} <= titles


def test_names_are_escaped(plan: Plan) -> None:
    hostile = '<script>alert("&")</script>'
    reasons = {5: hostile, 6: "x" * 500}
    picture = draw_plan(dataclasses.replace(plan, model=hostile, unused=reasons))
    assert "<script>" not in picture
    words = _words(ElementTree.fromstring(picture))
    assert f"Not used: node 5: {hostile}" in words
    assert any(each.endswith("...") and len(each) == 150 for each in words)


def test_load_runs_from_thin_blue_to_thick_red() -> None:
    assert (load_colour(0), load_colour(0.5), load_colour(1)) == ("#4c8bd6", "#e2a32b", "#d6402f")
    assert load_colour(7.0) == load_colour(1.0)
    widths = [load_width(load / 10) for load in range(11)]
    assert widths == sorted(widths)


def test_the_same_plan_gives_the_same_picture(plan: Plan) -> None:
    assert draw_plan(plan) == draw_plan(dataclasses.replace(plan))
