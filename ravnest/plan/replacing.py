"""Replaces a set of files in a folder as a whole or not at all, whatever interrupts it.

New files are written and synced to a staging folder that nobody reads. Renaming it to the commit
folder is the one atomic step: before it the old files are untouched, after it whoever comes next
(reader or writer) finishes the move. Every step of finishing may be repeated, and several processes
may finish at once. Two writers at a time are not supported: the later one discards what the
earlier one has staged, and that one fails without having changed anything.

Knows nothing of what the files mean.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import NoReturn

from ravnest.errors import PlanFileError
from ravnest.plan.codec import canonical_json
from ravnest.plan.layout import is_plan_path

_STAGING_PREFIX = ".ravnest-staging-"
_COMMITTED = ".ravnest-committed"
_NEW = "new"
_RECORD = "record.json"

OnStep = Callable[[str], None]


def _ignore(step: str) -> None:
    """The default of every `on_step`."""


def replace_files(
    folder: Path,
    fill: Callable[[Path], None],
    old_paths: Callable[[], Iterable[str]],
    *,
    on_step: OnStep = _ignore,
) -> None:
    """Puts what `fill` writes in the place of the old files.

    Args:
        folder: where the files belong; made when missing.
        fill: writes the new files below the folder it gets, under names of `plan.layout`.
        old_paths: names the files of `folder` that go when they have no successor; called once
            an earlier replacement is finished.
        on_step: called with a description before every change on disk; tests interrupt here.

    Raises:
        PlanFileError: something that is no file of a plan is in the way; nothing has been changed.
        OSError: the disk is full or read-only; nothing has been changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recover(folder, on_step=on_step)
    if (folder / _COMMITTED).exists():
        _refuse_record(folder / _COMMITTED)
    for stale in folder.glob(f"{_STAGING_PREFIX}*"):
        on_step(f"discard {stale.name}")
        shutil.rmtree(stale, ignore_errors=True)
    on_step("stage")
    staging = Path(tempfile.mkdtemp(prefix=_STAGING_PREFIX, dir=folder))
    try:
        (staging / _NEW).mkdir()
        fill(staging / _NEW)
        _prepare(folder, staging, old_paths(), on_step)
        on_step("commit")
        staging.rename(folder / _COMMITTED)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync_folder(folder)
    recover(folder, on_step=on_step)


def recover(folder: Path, *, on_step: OnStep = _ignore) -> None:
    """Finishes a replacement that was interrupted after its commit; does nothing otherwise.

    Raises:
        PlanFileError: the record of the replacement is damaged.
    """
    committed = folder / _COMMITTED
    try:
        record = (committed / _RECORD).read_bytes()
    except FileNotFoundError:
        _remove_empty(committed)
        return
    place, remove = _read_record(record, committed / _RECORD)
    for path in place:
        on_step(f"place {path}")
        _place(committed / _NEW / path, folder / path)
    for path in remove:
        on_step(f"remove {path}")
        (folder / path).unlink(missing_ok=True)
    for parent in sorted({p for path in (*place, *remove) for p in PurePosixPath(path).parents}):
        _sync_folder(folder / parent)
    _remove_emptied(folder, remove)
    on_step("finish")
    (committed / _RECORD).unlink(missing_ok=True)
    _remove_empty(committed)


def _prepare(folder: Path, staging: Path, old_paths: Iterable[str], on_step: OnStep) -> None:
    """Everything that can fail, before the commit: names, obstacles, and data safely on disk."""
    new = staging / _NEW
    files = sorted(path for path in new.rglob("*") if not path.is_dir())
    place = [path.relative_to(new).as_posix() for path in files]
    remove = sorted({path for path in old_paths if is_plan_path(path)} - set(place))
    for path in place:
        if not is_plan_path(path):
            raise PlanFileError(f"{path} is no name of a file of a plan")
        _refuse_obstacles(folder, path)
    for file in files:
        on_step(f"sync {file.relative_to(new)}")
        _sync_file(file)
    on_step("record")
    (staging / _RECORD).write_bytes(canonical_json({"place": place, "remove": remove}))
    _sync_file(staging / _RECORD)
    for parent in sorted({file.parent for file in files}):
        _sync_folder(parent)
    _sync_folder(staging)


def _refuse_obstacles(folder: Path, path: str) -> None:
    """A plan file may be replaced; a folder of its name, or a file in place of its folder, not."""
    target = folder / path
    if target.is_dir():
        raise PlanFileError(
            f"{target} is a folder; clusterize writes a file there", hint="move it out of the way"
        )
    for parent in PurePosixPath(path).parents:
        place = folder / parent
        if place.exists() and not place.is_dir():
            raise PlanFileError(
                f"{place} is a file; clusterize needs a folder there", hint="move it out of the way"
            )
        if place.is_dir() and place.stat().st_dev != folder.stat().st_dev:
            raise PlanFileError(
                f"{place} is on another disk than {folder}; no file can be moved there in one step",
                hint="link the whole node_data folder to the other disk instead",
            )


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Missing when an earlier or a simultaneous recovery has moved it.
    with contextlib.suppress(FileNotFoundError):
        source.replace(target)


def _read_record(content: bytes, path: Path) -> tuple[list[str], list[str]]:
    try:
        record = json.loads(content)
        place, remove = list(record["place"]), list(record["remove"])
        is_sound = all(isinstance(p, str) and is_plan_path(p) for p in (*place, *remove))
    except (ValueError, KeyError, TypeError, RecursionError):
        is_sound = False
    if not is_sound:
        _refuse_record(path.parent)
    return place, remove


def _refuse_record(committed: Path) -> NoReturn:
    raise PlanFileError(
        f"{committed / _RECORD} is damaged; an interrupted clusterize cannot be finished",
        hint=f"delete the folder {committed} and run clusterize again",
    )


def _remove_emptied(folder: Path, removed: Iterable[str]) -> None:
    """The folders that lost their last file; one that still has something in it stays."""
    parents = {parent for path in removed for parent in PurePosixPath(path).parents}
    for parent in sorted(parents - {PurePosixPath(".")}, key=lambda p: len(p.parts), reverse=True):
        with contextlib.suppress(OSError):
            (folder / parent).rmdir()


def _remove_empty(committed: Path) -> None:
    """What is left of a finished commit: folders only."""
    below = sorted(committed.rglob("*"), key=lambda path: len(path.parts), reverse=True)
    for path in (*below, committed):
        with contextlib.suppress(OSError):
            path.rmdir()


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Makes renames in a folder last; Windows has no such call and needs none."""
    if os.name != "posix" or not path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
