"""`ravnest plan --timeline`: the order of every stage's actions, as text and as a picture."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from ravnest import clusterize
from ravnest.cli.main import app
from ravnest.plan.files import load_node_plan, load_plan
from ravnest.stage.actions import list_actions
from ravnest.stage.position import StagePosition
from ravnest.stage.schedule import Schedule


@pytest.fixture
def planned(tmp_path: Path, node_configs: Callable[..., Path]) -> Callable[..., Path]:
    """Writes a plan of three stages and four microbatches per step."""

    def plan(schedule: str, **benchmarks: float) -> Path:
        node_data = node_configs(tmp_path, 3, **benchmarks)
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
        clusterize(
            model, (torch.zeros(4, 64),), node_data=node_data, num_clusters=1,
            schedule=schedule, update_frequency=4,
        )  # fmt: skip
        return node_data

    return plan


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["plan", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("schedule", list(Schedule))
def test_the_text_lists_every_stage_in_the_schedules_order(
    schedule: Schedule,
    planned: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target, node_data = tmp_path / "timeline.txt", planned(str(schedule))
    assert run("--node-data", str(node_data), "--timeline", str(target)) == 0
    plan = load_plan(node_data)
    lines = target.read_text().splitlines()
    orders = [line.split()[2:] for line in lines if re.match(r"  node \d+  F0 ", line)]
    charts = [line for line in lines if re.match(r"  node \d+  \S", line)][3:]
    assert len(orders) == len(charts) == 3
    for stage, order in enumerate(orders):
        slack = load_node_plan(node_data, plan.clusters[0][stage]).slack
        position = StagePosition(schedule, stage, 3, 4, slack)
        # Five steps, so that the two that are shown are like those of a longer run.
        listed = [str(action) for action in list_actions(position, 4 * 5)]
        assert order == listed[: listed.index("S1") + 1]
    assert "over time" not in capsys.readouterr().out


def test_a_dash_prints_it(planned: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    node_data = planned("zb-h1", flops=1e-6)  # so slow that links delay nothing
    assert run("--node-data", str(node_data), "--timeline", "-", "--timeline-steps", "1") == 0
    printed = capsys.readouterr().out
    assert "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3 S0\n" in printed
    assert "S1" not in printed


def test_a_picture_is_drawn(planned: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "timeline.svg"
    assert run("--node-data", str(planned("zb-h1")), "--timeline", str(target)) == 0
    words = "".join(ElementTree.parse(target).getroot().itertext())
    assert "backward of inputs" in words
    assert "backward of weights" in words


def test_impossible_places_are_refused(
    planned: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node_data = str(planned("1f1b"))
    assert run("--node-data", node_data, "--json", "--timeline", "-") == 2
    assert run("--node-data", node_data, "--timeline", str(tmp_path / "no" / "a.svg")) == 2
    assert "there is no folder" in capsys.readouterr().err
