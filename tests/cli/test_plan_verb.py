"""`ravnest plan` from end to end: real scripts and models, exit codes, no file left behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from ravnest import clusterize
from ravnest.cli.main import app

SCRIPT = """
import json, os, sys
import torch
from torch import nn
from ravnest import RavnestError, clusterize
import beside

def model(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))

if __name__ == "__main__":
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


Run = Callable[..., Ended]


@pytest.fixture
def folder(
    tmp_path: Path, node_configs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Where a script runs: three nodes are configured, and a module lies beside the script."""
    node_configs(tmp_path, 3)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "beside.py").write_text("VALUE = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return tmp_path


@pytest.fixture
def run(folder: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs a script with this body by `ravnest plan`; must not leave a file or a change."""

    def plan(body: str, *options: str, arguments: tuple[str, ...] = ()) -> Ended:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        (folder / "scripts" / "train.py").write_text(SCRIPT + lines)
        before = sorted(folder.rglob("*")), sys.argv, sys.path[:], sys.modules["__main__"]
        code = command("plan", "scripts/train.py", *options, "--", *arguments)
        after = sorted(folder.rglob("*")), sys.argv, sys.path[:], sys.modules["__main__"]
        assert after == before
        return Ended(code, *capfd.readouterr())

    return plan


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code


CALL = "clusterize(model(), (torch.zeros(4, 8),), num_clusters=1)"


def test_a_script_is_planned_and_nothing_is_written(run: Run) -> None:
    ended = run(CALL)
    assert ended.code == 0, ended.err
    assert "Sequential on 2 of 3 nodes in 1 cluster" in ended.out
    assert "self.IP" not in ended.out, "the plan's own text is not printed as well"


def test_a_script_runs_as_python_would_run_it(run: Run) -> None:
    body = f"print(json.dumps([sys.argv, sys.path[0], __name__, beside.VALUE]))\n{CALL}"
    ended = run(body, arguments=("--lr", "3"))
    argv, path, name, value = json.loads(ended.out.splitlines()[0])
    assert argv == ["scripts/train.py", "--lr", "3"]
    assert Path(path) == Path.cwd() / "scripts"
    assert (name, value) == ("__main__", 7)


def test_json_is_all_there_is_on_stdout(run: Run) -> None:
    body = f"print('by python')\nos.system('echo by a child')\n{CALL}\nprint('after')"
    ended = run(body, "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert found["plans"][0]["plan"]["clusters"][0]["nodes"]
    assert all(words in ended.err for words in ("by python", "by a child", "after"))


def test_every_call_is_shown(run: Run) -> None:
    ended = run(f"{CALL}\nclusterize(model(32), (torch.zeros(2, 8),), num_clusters=3)")
    assert "Call 1 of 2" in ended.out
    assert "3 of 3 nodes in 3 clusters" in ended.out


def test_a_script_that_never_plans_is_an_error(run: Run) -> None:
    ended = run("pass")
    assert ended.code == 1
    assert "error: scripts/train.py has ended without a call of clusterize" in ended.err
    assert "hint: call ravnest.clusterize" in ended.err
    assert ended.out == ""


def test_an_exception_of_the_script_is_shown_from_the_script_on(run: Run) -> None:
    ended = run(f"{CALL}\n{{}}['x']")
    assert ended.code == 1
    assert "Sequential on 2 of 3 nodes" in ended.out, "what was planned before is shown"
    lines = ended.err.strip().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert 'File "scripts/train.py", line' in lines[1]
    assert lines[-1] == "KeyError: 'x'"
    assert "runpy" not in ended.err
    assert "ravnest" not in ended.err


def test_a_script_that_does_not_parse_has_no_frames(run: Run) -> None:
    ended = run("def f(:")
    assert ended.code == 1
    assert "SyntaxError" in ended.err
    assert "runpy" not in ended.err


def test_an_error_of_ours_has_no_traceback(run: Run) -> None:
    ended = run("clusterize(model(), (torch.zeros(4, 8),), schedule='gpipe')")
    assert ended.code == 1
    assert ended.err.startswith("error: schedule='gpipe' is unknown")
    assert "at scripts/train.py, line 12" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("exit_call", "code", "words"),
    [("sys.exit(7)", 7, ""), ("sys.exit()", 0, ""), ("sys.exit('enough')", 1, "enough")],
)
def test_the_scripts_own_exit_code_is_passed_on(
    run: Run, exit_call: str, code: int, words: str
) -> None:
    ended = run(f"{CALL}\n{exit_call}")
    assert (ended.code, ended.err.strip()) == (code, words)
    assert "Sequential on" in ended.out


def test_an_error_that_the_script_handles_is_no_failure(run: Run) -> None:
    ended = run(
        "try: clusterize(model(), (torch.zeros(4, 8),), num_clusters=9)\n"
        f"except RavnestError: {CALL}"
    )
    assert ended.code == 0
    assert "there is no plan: num_clusters=9" in ended.out
    assert "Sequential on 2 of 3 nodes" in ended.out


def test_changes_are_planned_beside_the_call(run: Run) -> None:
    ended = run(
        CALL,
        *("--what-if", "-node.1", "--what-if", "+node ram=16,bandwidth=100"),
        *("--what-if", "num_clusters=3", "--what-if", "batch=2x", "--json"),
    )
    assert ended.code == 0, ended.err
    (call,) = json.loads(ended.out)["plans"]
    assert [node["id"] for node in call["plan"]["nodes"]] == [0, 1, 2]
    changed = call["what_if"]
    assert [node["id"] for node in changed["plan"]["nodes"]] == [0, 2, 3]
    assert changed["plan"]["nodes"][2]["memory_bytes"] == 16_000_000_000
    assert changed["comparison"]["num_clusters"] == [1, 3]
    assert changed["notes"] == ["example batch 4 -> 8: 1 tensor tiled"]


def test_a_change_that_fits_where_the_call_does_not(run: Run, folder: Path) -> None:
    configs = json.loads((folder / "node_data" / "node_configs.json").read_text())
    for entry in configs.values():
        entry["benchmarks"]["ram"] = 0.1
    (folder / "node_data" / "node_configs.json").write_text(json.dumps(configs))
    ended = run(f"{CALL}\nprint('went on')", "--what-if", "node.2.ram=16")
    assert ended.code == 0, ended.err
    assert "went on" in ended.out
    assert "as it is there is no plan: the model does not fit" in ended.out
    ended = run(CALL, "--what-if", "node.2.ram=0.2")
    assert ended.code == 1


def test_a_change_without_a_plan_fails(run: Run) -> None:
    ended = run(CALL, "--what-if", "-node.7")
    assert ended.code == 1
    assert "with the changes there is no plan: '-node.7': there is no node 7" in ended.out


def test_a_picture_is_drawn_of_each_plan(
    run: Run, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("pictures")
    assert run(CALL, "--svg", str(target / "one.svg")).code == 0
    assert run(f"{CALL}\n{CALL}", "--svg", str(target / "two.svg")).code == 0
    names = ["one.svg", "two-1.svg", "two-2.svg"]
    assert sorted(path.name for path in target.iterdir()) == names
    for name in names:
        assert ElementTree.parse(target / name).getroot().tag.endswith("svg")
    ended = run(CALL, "--svg", "/dev/full")
    assert ended.code == 1
    assert ended.err.startswith("error: /dev/full cannot be written: No space left on device")


def test_a_written_plan_is_shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    plan = clusterize(model, (torch.zeros(4, 8),), num_clusters=1)
    capfd.readouterr()
    assert command("plan", "--node-data", "node_data", "--json") == 0
    found = json.loads(capfd.readouterr().out)
    assert found["plans"][0]["plan"]["sha256"] == plan.sha256
    assert command("plan", "--node-data", "scripts") == 1
    assert "error: scripts/plan.json does not exist" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected either SCRIPT or --node-data"),
        (("scripts/beside.py", "--node-data", "node_data"), "expected either SCRIPT"),
        (("absent.py",), "does not exist"),
        (("scripts",), "is a directory"),
        (("--node-data", "node_data", "--what-if", "-node.1"), "has no model in it"),
        (("scripts/beside.py", "--what-if", "node.1.rum=1"), "no 'rum'"),
        (("scripts/beside.py", "--svg", "absent/plan.svg"), "there is no folder absent"),
        (("scripts/beside.py", "--jsn"), "No such option"),
    ],
)
def test_misuse_is_2(
    folder: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert command("plan", *arguments) == 2
    captured = capfd.readouterr()
    assert words in " ".join(captured.err.replace("│", " ").split())
    assert captured.out == ""
