"""The JSON of `ravnest plan --json`: its keys and values, as docs/planning.md promises them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ravnest.cli.rehearsing import Rehearsed
from ravnest.cli.rendering.document import document
from ravnest.cli.whatif.grammar import parse_changes
from ravnest.errors import PlanningError
from ravnest.plan.model import Plan

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planning.md"


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield key
            yield from _keys(child)
    if isinstance(value, list):
        for child in value:
            yield from _keys(child)


def test_the_document_is_the_plan(plan: Plan) -> None:
    found = json.loads(json.dumps(document("train.py", [Rehearsed(plan)]), allow_nan=False))
    assert list(found) == ["schema", "source", "changes", "plans", "error"]
    assert (found["schema"], found["source"], found["error"]) == (1, "train.py", None)
    (call,) = found["plans"]
    assert call["what_if"] is None
    assert [cluster["nodes"] for cluster in call["plan"]["clusters"]] == [[0, 1, 2], [3, 4]]
    stage = call["plan"]["stages"][1]
    assert (stage["node"], stage["role"], stage["layers"][0]) == (1, "stem", "blocks.3")
    assert sum(stage["memory"].values()) == stage["peak_bytes"] == 4_000_000_000
    assert {node["id"]: node["unused"] for node in call["plan"]["nodes"]}[5] is not None
    prediction = call["plan"]["prediction"]
    assert prediction["samples_per_s"] == pytest.approx(787.2)
    assert prediction["gap"] == pytest.approx(0.03)
    assert prediction["averaging_share"] == pytest.approx(0.04)
    link = call["plan"]["links"][0]
    assert (link["source"], link["target"], link["traffic"]) == (0, 1, "activations")


def test_a_what_if_has_both_plans(plan: Plan, faster_plan: Plan) -> None:
    changes = parse_changes(["node.2.ram=16"])
    found = document("train.py", [Rehearsed(plan, faster_plan, ("a note",))], changes)
    assert found["changes"] == ["node.2.ram=16"]
    what_if = found["plans"][0]["what_if"]
    assert what_if["notes"] == ["a note"]
    comparison = what_if["comparison"]
    assert comparison["factor"] == pytest.approx(998.4 / 787.2)
    assert comparison["num_clusters"] == [2, 2]
    moved = {node["id"]: node["is_moved"] for node in comparison["nodes"]}
    assert moved == {0: False, 1: False, 2: False, 3: False, 4: True, 5: True, 6: False}
    assert comparison["nodes"][5]["peak_bytes"] == [None, 4_000_000_000]


def test_failures_have_their_words(plan: Plan) -> None:
    error = PlanningError("no", hint="more")
    words = {"kind": "PlanningError", "message": "no", "hint": "more"}
    found = document("x.py", [Rehearsed(plan, error)], parse_changes(["-node.0"]), KeyError("y"))
    assert found["plans"][0]["error"] is None
    assert found["plans"][0]["what_if"]["error"] == words
    assert found["plans"][0]["what_if"]["comparison"] is None
    assert found["error"] == {"kind": "KeyError", "message": "'y'", "hint": None}
    assert document("x.py", [Rehearsed(error)])["plans"][0]["error"] == words


def test_every_key_is_documented(
    plan: Plan, faster_plan: Plan, plan_with: Callable[..., Plan]
) -> None:
    error = PlanningError("no")
    calls = [Rehearsed(plan, faster_plan), Rehearsed(error), Rehearsed(plan_with(((0,),)))]
    found = document("train.py", calls, parse_changes(["-node.0"]), error)
    documented = set(re.findall(r"\w+", PAGE.read_text(encoding="utf-8")))
    assert not set(_keys(found)) - documented
