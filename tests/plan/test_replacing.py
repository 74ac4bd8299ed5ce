"""A plan is replaced as a whole or not at all, whatever the step at which it is interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ravnest.errors import PlanFileError
from ravnest.plan.files import load_node_plan, load_plan, verify_stage_files, write_plan
from ravnest.plan.model import Plan
from ravnest.plan.parts import StagePlan
from ravnest.plan.replacing import recover, replace_files

WriteStage = Callable[[StagePlan, Path], None]

USER_FILES = (
    "node_configs.json",
    "notes.txt",
    "nodes/mine.txt",
    "cluster_0/mine/data.bin",
    "cluster_1/node_3/losses.txt",
)


class Interrupted(BaseException):
    """Stands for Ctrl-C, or for anything else that ends the process."""


def _files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _check_loadable(node_data: Path) -> str:
    """The hash of the plan that loads, every file of it verified."""
    plan = load_plan(node_data)
    for stage in plan.stages:
        node_plan = load_node_plan(node_data, stage.node_id)
        assert node_plan.plan_sha256 == plan.sha256
        verify_stage_files(node_data, node_plan)
    return plan.sha256


@pytest.fixture
def old_plan(plan_of: Callable[..., Plan]) -> Plan:
    return plan_of(((1, 2, 5), (0, 3, 4)), model="Old")


@pytest.fixture
def new_plan(plan_of: Callable[..., Plan]) -> Plan:
    """Shares some nodes with the old one, lacks others and moves others to another cluster."""
    return plan_of(((0, 2, 1), (7, 8, 9)), model="New")


@pytest.fixture
def node_data(tmp_path: Path, old_plan: Plan, write_stage: WriteStage) -> Path:
    folder = tmp_path / "node_data"
    for name in USER_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    write_plan(folder, old_plan, write_stage)
    return folder


def test_a_new_plan_removes_what_the_old_one_wrote_and_nothing_else(
    node_data: Path, tmp_path: Path, new_plan: Plan, write_stage: WriteStage
) -> None:
    write_plan(node_data, new_plan, write_stage)
    write_plan(tmp_path / "fresh", new_plan, write_stage)
    user_files = {name: name.encode() for name in USER_FILES}
    assert _files(node_data) == {**_files(tmp_path / "fresh"), **user_files}
    assert not (node_data / "cluster_0/node_5").exists()
    assert (node_data / "cluster_1/node_3").is_dir()


def test_writing_the_same_plan_again_changes_nothing(
    node_data: Path, old_plan: Plan, write_stage: WriteStage
) -> None:
    before = _files(node_data)
    write_plan(node_data, old_plan, write_stage)
    assert _files(node_data) == before


def test_interrupted_at_every_step_the_old_or_the_new_plan_is_there_complete(
    node_data: Path, tmp_path: Path, new_plan: Plan, write_stage: WriteStage
) -> None:
    old = load_plan(node_data).sha256
    new = write_plan(tmp_path / "fresh", new_plan, write_stage).sha256
    found = []
    for number in range(1000):
        copy = shutil.copytree(node_data, tmp_path / f"run_{number}")
        steps: list[str] = []

        def interrupt(step: str, number: int = number, steps: list[str] = steps) -> None:
            steps.append(step)
            if len(steps) > number:
                raise Interrupted(step)

        try:
            write_plan(copy, new_plan, write_stage, on_step=interrupt)
        except Interrupted:
            found.append((steps[-1], _check_loadable(copy)))
            assert all((copy / name).read_text() == name for name in USER_FILES)
            assert not list(copy.glob(".ravnest-*"))
        else:
            break
        # Whatever was left behind is no obstacle to the next run.
        assert write_plan(copy, new_plan, write_stage).sha256 == new == _check_loadable(copy)
    committed = [step for step, _ in found].index("commit") + 1
    assert [sha256 for _, sha256 in found] == [old] * committed + [new] * (len(found) - committed)
    assert len(found) == len(steps) > 60


def test_killed_at_every_step_the_old_or_the_new_plan_is_there_complete(
    node_data: Path, tmp_path: Path, new_plan: Plan, write_stage: WriteStage
) -> None:
    """A killed process cleans nothing up: what is on disk at each step is what it leaves."""
    old = load_plan(node_data).sha256
    snapshots: list[Path] = []

    def photograph(step: str) -> None:
        snapshots.append(shutil.copytree(node_data, tmp_path / f"step_{len(snapshots)}"))

    new = write_plan(node_data, new_plan, write_stage, on_step=photograph).sha256
    final = _files(node_data)
    found = []
    for snapshot in snapshots:
        recover(snapshot)
        found.append(_check_loadable(snapshot))
        assert all((snapshot / name).read_text() == name for name in USER_FILES)
        if found[-1] == new:
            assert _files(snapshot) == final
        write_plan(snapshot, new_plan, write_stage)
        assert _files(snapshot) == final
    switch = found.index(new)
    assert set(found[:switch]) == {old}
    assert set(found[switch:]) == {new}


def test_a_recovery_can_be_killed_at_every_step_too(
    node_data: Path, tmp_path: Path, new_plan: Plan, write_stage: WriteStage
) -> None:
    committed = tmp_path / "committed"

    def photograph(step: str) -> None:
        if (node_data / ".ravnest-committed").exists() and not committed.exists():
            shutil.copytree(node_data, committed)

    new = write_plan(node_data, new_plan, write_stage, on_step=photograph).sha256
    snapshots: list[Path] = []
    recover(
        committed,
        on_step=lambda step: snapshots.append(
            shutil.copytree(committed, tmp_path / f"recovery_{len(snapshots)}")
        ),
    )
    assert len(snapshots) > 20
    for snapshot in (committed, *snapshots):
        assert _check_loadable(snapshot) == new
        assert _files(snapshot) == _files(node_data)


def test_two_recoveries_at_once_do_not_disturb_each_other(
    node_data: Path, new_plan: Plan, write_stage: WriteStage
) -> None:
    """At every step of one recovery another one runs from start to end."""
    others = []

    def recover_meanwhile(step: str) -> None:
        recover(node_data)
        others.append(step)

    new = write_plan(node_data, new_plan, write_stage, on_step=recover_meanwhile).sha256
    assert "place plan.json" in others
    assert _check_loadable(node_data) == new


def test_a_full_disk_leaves_the_old_plan_and_no_litter(node_data: Path, new_plan: Plan) -> None:
    before = _files(node_data)

    def fail(stage: StagePlan, folder: Path) -> None:
        (folder / "weights.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_plan(node_data, new_plan, fail)
    assert _files(node_data) == before


@pytest.mark.parametrize("in_the_way", ["plan.json/x", "nodes", "cluster_0", "nodes/node_7.json/x"])
def test_what_is_in_the_way_is_named_before_anything_changes(
    tmp_path: Path, new_plan: Plan, write_stage: WriteStage, in_the_way: str
) -> None:
    (tmp_path / in_the_way).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / in_the_way).write_text("mine")
    with pytest.raises(PlanFileError, match=f"{in_the_way.removesuffix('/x')} is a fol|is a file"):
        write_plan(tmp_path, new_plan, write_stage)
    assert _files(tmp_path) == {in_the_way: b"mine"}


def test_files_of_an_edited_plan_stay_for_it_cannot_be_trusted(
    node_data: Path, new_plan: Plan, write_stage: WriteStage, caplog: pytest.LogCaptureFixture
) -> None:
    plan_file = node_data / "plan.json"
    plan_file.write_text(plan_file.read_text().replace("weights.safetensors", "losses.txt"))
    write_plan(node_data, new_plan, write_stage)
    assert "the files of the plan before stay" in caplog.text
    assert (node_data / "cluster_1/node_3/losses.txt").exists()
    _check_loadable(node_data)


@pytest.mark.parametrize(
    "record", ["", "{}", '{"place": ["../evil"], "remove": []}', '{"place": [], "remove": [1]}']
)
def test_a_damaged_record_is_refused_and_touches_nothing(node_data: Path, record: str) -> None:
    (node_data / ".ravnest-committed").mkdir()
    (node_data / ".ravnest-committed/record.json").write_text(record)
    before = _files(node_data)
    with pytest.raises(PlanFileError, match=r"record\.json is damaged(?s:.)*delete the folder"):
        load_plan(node_data)
    assert _files(node_data) == before


def test_only_names_of_plan_files_are_placed_or_removed(node_data: Path) -> None:
    def fill(new: Path) -> None:
        (new / "evil.txt").write_text("x")

    with pytest.raises(PlanFileError, match=r"evil\.txt is no name of a file of a plan"):
        replace_files(node_data, fill, lambda: ())
    replace_files(node_data, lambda new: None, lambda: ("notes.txt", "../x", "nodes/mine.txt"))
    assert (node_data / "notes.txt").exists()
    assert (node_data / "nodes/mine.txt").exists()
