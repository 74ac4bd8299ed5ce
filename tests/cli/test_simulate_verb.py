"""`ravnest simulate`: what it prints, draws and refuses."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from ravnest.cli.main import app
from ravnest.cli.rendering.picture.timeline import tick_length
from ravnest.cli.simulation_options import parse_failures, parse_speeds
from ravnest.errors import ConfigError
from ravnest.plan.codec import encode, sealed
from ravnest.plan.model import Plan
from ravnest.plan.parts import NodeSpec, RingPlan, StagePlan
from ravnest.plan.prediction import (
    ClusterPrediction,
    LinkPrediction,
    MemoryBudget,
    PlannedRun,
    Prediction,
    StagePrediction,
    Traffic,
)
from ravnest.simulate.settings import Failure

NOTHING = MemoryBudget(0, 0, 0, 0, 0, 0, 0, 0, 0)


def plan_of(num_clusters: int, num_stages: int) -> Plan:
    """Equal stages of 1 s forward and 2 s backward, 4 microbatches of 2 samples per step."""
    ids = [[c * num_stages + k for k in range(num_stages)] for c in range(num_clusters)]
    flat = [node for cluster in ids for node in cluster]
    pairs = [(a, b) for cluster in ids for a, b in itertools.pairwise(cluster)]
    step_s = (4 + num_stages - 1) * 3.0
    return Plan(
        model="demo.Model",
        nodes=tuple(NodeSpec(i, f"10.0.0.1:{1000 + i}", "", 10**9, 1e8) for i in flat),
        clusters=tuple(map(tuple, ids)),
        stages=tuple(
            StagePlan(node, c, k, (k, k + 1), (f"w{k}",), (), 0, 0.0)
            for c, cluster in enumerate(ids)
            for k, node in enumerate(cluster)
        ),
        rings=tuple(
            RingPlan(k, tuple(cluster[k] for cluster in ids), (f"w{k}",), ())
            for k in range(num_stages)
        ),
        aliases={},
        state_names=(),
        unused={},
        prediction=Prediction(
            PlannedRun("1f1b", 4, 2, 100, "torch.optim.SGD", False, "none"),
            tuple(StagePrediction(node, NOTHING, 1.0, 2.0, 0.0, 12 / step_s) for node in flat),
            tuple(
                LinkPrediction(*pair, traffic, 0, 0.0, 0.0, 0.0)
                for a, b in pairs
                for pair, traffic in (
                    ((a, b), Traffic.ACTIVATIONS),
                    ((b, a), Traffic.GRADIENTS),
                )
            ),
            tuple(
                ClusterPrediction(c, step_s, 8 / step_s, 0.0, "node 0 computing")
                for c in range(num_clusters)
            ),
            0.0,
            num_clusters * 8 / step_s,
            1.0,
            True,
            (),
        ),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a plan of one cluster of three nodes in its node_data folder."""
    (tmp_path / "node_data").mkdir()
    content = encode(sealed(plan_of(1, 3)))
    (tmp_path / "node_data" / "plan.json").write_bytes(content)
    (tmp_path / "other.json").write_bytes(content)
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def test_the_simulated_rate_stands_beside_the_predicted(folder: Path) -> None:
    result = run(folder)
    assert result.exit_code == 0, result.output
    assert "simulated: 0.44 samples/s, 0.44 predicted (1.000x)" in " ".join(result.output.split())
    assert "18.0 s     18.0 s  (1.000x)" in result.output
    assert "67 %" in result.output
    assert "100 %" in result.output.split("Optimizer steps between")[1]


@pytest.mark.parametrize("place", ["", "node_data", "node_data/plan.json", "other.json"])
def test_a_plan_is_found_in_a_folder_and_as_a_file(folder: Path, place: str) -> None:
    result = run(folder / place, "--json", "--steps", 4)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["simulated"]["clusters"][0]["step_time_s"] == pytest.approx(18)
    assert found["predicted"]["step_time_s"] == [18]
    assert found["settings"]["num_steps"] == 4


def test_json_has_no_infinity(folder: Path) -> None:
    result = run(folder, "--json", "--fail", "node.1@0s")
    found = json.loads(result.output, parse_constant=pytest.fail)
    assert found["simulated"]["clusters"][0]["step_time_s"] is None
    assert found["simulated"]["clusters"][0]["stopped_by"] == 1


def test_failures_are_explained(folder: Path) -> None:
    result = run(folder, "--fail", "node.1@40s", "--steps", 9)
    words = " ".join(result.output.split())
    assert "node_1 ends at 40 s: cluster 0 ends at 40 s, after step 2" in words
    assert "stopped by node_1" in words


def test_settings_change_the_run(folder: Path) -> None:
    def step_s(*arguments: str) -> float:
        found = json.loads(run(folder, "--json", *arguments).output)
        return float(found["simulated"]["clusters"][0]["step_time_s"])

    assert step_s("--speed", "node.1=0.5") > 1.3 * step_s()
    assert step_s("--jitter", "500") > step_s()
    assert step_s("--variation", "0.3") > step_s()
    assert step_s("--jitter", "500", "--seed", "1") != step_s("--jitter", "500")
    assert step_s("--jitter", "500", "--seed", "1") == step_s("--jitter", "500", "--seed", "1")


def texts(path: Path) -> list[str]:
    return [each.text or "" for each in ElementTree.parse(path).iter() if each.tag.endswith("text")]


def test_the_timeline_has_a_row_per_node_and_the_microbatches(folder: Path) -> None:
    picture = folder / "run.svg"
    result = run(folder, "--timeline", picture, "--steps", 3, "--fail", "2@50s+4s")
    assert result.exit_code == 0, result.output
    words = texts(picture)
    assert {"node 0", "node 1", "node 2", "forward", "backward", "idle", "silent"} <= set(words)
    # Twelve microbatches on three nodes, forward and backward.
    assert sum(word == "7" for word in words) == 6
    assert "the first 3 of 3 optimizer steps; 0.44 samples/s in the steady state" in words
    assert not any("activations" in word for word in words)
    titles = [e.text or "" for e in ElementTree.parse(picture).iter() if e.tag.endswith("title")]
    assert "forward of microbatch 0\n0 s, for 1.00 s" in titles


def test_the_timeline_shows_links_when_asked(folder: Path) -> None:
    picture = folder / "run.svg"
    assert run(folder, "--timeline", picture, "--links").exit_code == 0
    assert {"activations to 1", "gradients to 0"} <= set(texts(picture))


def test_a_timeline_of_hundreds_of_nodes_stays_a_picture(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(encode(sealed(plan_of(150, 3))))
    picture = tmp_path / "run.svg"
    result = run(tmp_path, "--timeline", picture, "--steps", 3)
    assert result.exit_code == 0, result.output
    assert any("50 more rows are not shown" in word for word in texts(picture))
    assert picture.stat().st_size < 4_000_000
    assert "and 134 clusters more; --json has all" in result.output


@pytest.mark.parametrize(
    ("length_s", "most", "expected"), [(10, 10, 1), (10.5, 10, 2), (0.3, 9, 0.05), (99, 5, 20)]
)
def test_ticks_are_round(length_s: float, most: int, expected: float) -> None:
    assert tick_length(length_s, most) == pytest.approx(expected)


def test_speeds_and_failures_are_parsed() -> None:
    assert parse_speeds(["node.3=0.5", "node_4=2", "5=1.25"]) == {3: 0.5, 4: 2.0, 5: 1.25}
    assert parse_failures(["node.2@30s+10s", "1@2min", "0@1.5h+500ms", "7@3"]) == (
        Failure(2, 30, 10),
        Failure(1, 120),
        Failure(0, 5400, 0.5),
        Failure(7, 3),
    )


@pytest.mark.parametrize("text", ["node.3", "node.3=fast", "=2", "node.3=-1", "node.x=1", ""])
def test_other_speeds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no speed of a node\n  hint: write node\.3=0\.5"):
        parse_speeds([text])


def test_a_speed_is_said_once() -> None:
    with pytest.raises(ConfigError, match="says of node 3 twice"):
        parse_speeds(["3=1", "node.3=2"])


@pytest.mark.parametrize("text", ["node.2", "node.2@", "node.2@30x", "node.2@3s+", "2@-1s", "@3s"])
def test_other_failures_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no failure of a node\n  hint: write node\.2@30s"):
        parse_failures([text])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--speed", "node.1=0"], "speed of node 1 is 0.0; expected a finite number above 0"),
        (["--fail", "node.1@1s+0s"], "duration_s of failure of node 1 is 0.0"),
        (["--steps", "0"], "--steps"),
        (["--links"], "add --timeline FILE.svg"),
        (["--timeline", "nowhere/run.svg"], "there is no folder nowhere"),
    ],
)
def test_wrong_usage_ends_with_2(folder: Path, arguments: list[str], words: str) -> None:
    result = run(folder, *arguments)
    assert result.exit_code == 2
    flat = " ".join(result.output.replace("│", " ").split())
    assert words in flat


def test_a_node_that_is_not_in_the_plan_is_named(folder: Path) -> None:
    result = run(folder, "--speed", "node.9=2")
    assert result.exit_code == 1
    assert "node_9 has no part in the plan; its nodes are node_0, node_1, node_2" in result.output


def test_a_plan_without_a_prediction_says_what_to_do(tmp_path: Path) -> None:
    import dataclasses

    plan = dataclasses.replace(plan_of(1, 2), prediction=None)
    (tmp_path / "plan.json").write_bytes(encode(sealed(plan)))
    result = run(tmp_path)
    assert result.exit_code == 1
    assert "the plan predicts no times" in result.output
    assert "run clusterize again" in result.output


def test_an_empty_folder_and_another_file_are_refused(tmp_path: Path) -> None:
    assert "plan.json does not exist" in run(tmp_path).output
    stranger = tmp_path / "notes.txt"
    stranger.write_text("hello")
    result = run(stranger)
    assert result.exit_code == 1
    assert "is damaged" in result.output
