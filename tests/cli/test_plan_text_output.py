"""Plans for people: what is said, within 80 columns, in plain characters off a terminal."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from ravnest.cli.rehearsing import Rehearsed
from ravnest.cli.rendering import units
from ravnest.cli.rendering.plan_text import show_plan
from ravnest.cli.rendering.report import show_calls
from ravnest.cli.whatif.grammar import parse_changes
from ravnest.errors import NotEnoughMemoryError
from ravnest.plan.model import Plan

Draw = Callable[[Console], None]


def _printed(show: Draw, *, width: int = 80) -> str:
    output = io.StringIO()
    show(Console(file=output, width=width, highlight=False, markup=False, emoji=False))
    return output.getvalue()


def _in_colour(show: Draw) -> str:
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    show(Console(file=output, width=80, force_terminal=True, color_system="standard"))
    output.seek(0)
    return output.read()


def _row(text: str, start: str) -> str:
    rows = [" ".join(line.split()) for line in text.splitlines()]
    (found,) = [row for row in rows if row.startswith(start)]
    return found


def test_a_plan_says_what_a_person_wants_to_know(plan: Plan) -> None:
    text = _printed(lambda console: show_plan(console, plan))
    assert "GPT on 5 of 7 nodes in 2 clusters: 787 samples/s" in text
    assert "schedule 1f1b, steps of 8 x 16 samples, AdamW" in text
    assert "Cluster 0: 410 samples/s, 312 ms per step, bubble 18 %" in text
    assert "bottleneck: node 2 computes" in text
    assert (
        _row(text, "1 stem") == "1 stem 3 500 MB 12.3 ms 24.6 ms 73 % ####.... 4.00 GB of 8.00 GB"
    )
    assert (
        _row(text, "node 1 -> 2") == "node 1 -> 2 activations 1.23 MB microbatch 13.8 ms "
        "##...... 29 %"
    )
    assert "Averaging takes 1.20 s every 100 steps: costs 4 % of the samples/s" in text
    assert "planned for 795 samples/s, upper bound 820, gap 3 %" in text
    assert "- speed of node 2 is 50 GFLOP/s, as the others'" in text
    assert "- nodes 5, 6: it would slow its cluster down" in text


def test_parts_of_memory_are_shown_on_demand(plan: Plan) -> None:
    assert "Memory in MB" not in _printed(lambda console: show_plan(console, plan))
    text = _printed(lambda console: show_plan(console, plan, with_memory=True))
    assert _row(text, "optimizer") == "optimizer 800 800 800 800 800"
    assert _row(text, "peak") == "peak 4,000 4,000 4,000 4,000 4,000"
    assert _row(text, "offered") == "offered 4,000 8,000 12,000 4,000 8,000"
    assert "stashed" not in text, "a part that no node has is left out"


def test_plain_output_is_ascii_and_80_columns_wide(
    plan: Plan, plan_with: Callable[..., Plan], faster_plan: Plan
) -> None:
    long = plan_with((tuple(range(1000, 1060)), tuple(range(1060, 1100))), spare=40)
    calls = [Rehearsed(plan, faster_plan, ("example batch 4 -> 8: 1 tensor tiled",))]
    changes = parse_changes(["node.2.ram=16"])
    shows: tuple[Draw, ...] = (
        lambda console: show_plan(console, long, with_memory=True),
        lambda console: show_calls(console, calls, changes),
    )
    for show in shows:
        text = _printed(show)
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= 80
        assert "…" not in text


def test_a_terminal_gets_colours_and_lines(plan: Plan) -> None:
    text = _in_colour(lambda console: show_plan(console, plan))
    assert "\x1b[31m━" in text, "a full node is red"
    assert "\x1b[32m━" in text, "a node with room is green"


def test_many_links_are_cut_to_the_busiest(plan_with: Callable[..., Plan]) -> None:
    text = _printed(lambda console: show_plan(console, plan_with((tuple(range(20)),))))
    assert text.count(" -> ") == 12
    assert "and 26 more with at most" in text


def test_a_plan_without_predictions_says_so(plan_with: Callable[..., Plan]) -> None:
    text = _printed(lambda console: show_plan(console, plan_with(has_prediction=False)))
    assert "no predictions; run clusterize again" in text
    assert _row(text, "1 stem") == "1 stem 3 - - - - ####.... 4.00 GB of 8.00 GB"


def test_the_best_plan_there_is_is_called_that(plan: Plan) -> None:
    assert plan.prediction is not None
    best = dataclasses.replace(
        plan, prediction=dataclasses.replace(plan.prediction, is_optimal=True)
    )
    assert "the best plan there is" in _printed(lambda console: show_plan(console, best))


def test_a_what_if_shows_both_plans_and_the_factor(plan: Plan, faster_plan: Plan) -> None:
    calls = [Rehearsed(plan, faster_plan, ("example batch 4 -> 8: 1 tensor tiled",))]
    changes = parse_changes(["node.2.ram=16", "batch=2x"])
    text = _printed(lambda console: show_calls(console, calls, changes))
    assert "What if node.2.ram=16, batch=2x" in text
    assert "example batch 4 -> 8: 1 tensor tiled" in text
    assert _row(text, "samples/s") == "samples/s 787 998 1.27x"
    assert _row(text, "step time") == "step time 312 ms 312 ms 1x"
    assert _row(text, "0 root of 0") == "0 root of 0 root of 0 3 4.00 GB 4.00 GB 1x"
    assert _row(text, "4 leaf of 1") == "4 leaf of 1 leaf of 0 3 4.00 GB 4.00 GB 1x changed"
    assert _row(text, "5 not used") == "5 not used leaf of 1 0 -> 3 - 4.00 GB changed"


@pytest.mark.parametrize("is_fitting_before", [True, False])
def test_a_what_if_without_one_of_the_plans(plan: Plan, is_fitting_before: bool) -> None:
    error = NotEnoughMemoryError("node 2: needs 9 GB, has 8 GB", hint="add memory")
    call = Rehearsed(plan, error) if is_fitting_before else Rehearsed(error, plan)
    text = _printed(lambda console: show_calls(console, [call], parse_changes(["-node.3"])))
    words = "with the changes" if is_fitting_before else "as it is"
    assert f"{words} there is no plan: node 2: needs 9 GB, has 8 GB" in text
    assert "hint: add memory" in text
    assert ("787 samples/s" in text) is not is_fitting_before


def test_several_calls_are_numbered(plan: Plan, faster_plan: Plan) -> None:
    calls = [Rehearsed(plan), Rehearsed(faster_plan)]
    text = _printed(lambda console: show_calls(console, calls))
    assert text.index("Call 1 of 2") < text.index("787 samples/s")
    assert text.index("Call 2 of 2") < text.index("998 samples/s")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (units.size(0), "0 B"),
        (units.size(999_700), "1.00 MB"),
        (units.size(123_456_789), "123 MB"),
        (units.size(12_340_000_000), "12.3 GB"),
        (units.duration(0), "0 s"),
        (units.duration(0.3119), "312 ms"),
        (units.duration(0.9999), "1.00 s"),
        (units.duration(4.5e-8), "0.045 us"),
        (units.duration(86_400), "86,400 s"),
        (units.percent(0), "0 %"),
        (units.percent(0.001), "< 1 %"),
        (units.percent(0.999), "> 99 %"),
        (units.percent(1.2), "120 %"),
        (units.number(1204.4), "1,204"),
        (units.number(9.996), "10.0"),
        (units.number(0.01234), "0.0123"),
        (units.nodes([3]), "node 3"),
        (units.nodes([12, 4, 5, 6, 1, 9, 10]), "nodes 1, 4-6, 9, 10, 12"),
        (units.factor(0, 5), ""),
        (units.factor(4, 5), "1.25x"),
    ],
)
def test_numbers_for_people(shown: str, expected: str) -> None:
    assert shown == expected
