"""plan.json, nodes/node_<id>.json and the stage files below node_data/: written and read, verified.

What lies in a stage folder is the capture room's; here it is files with a size and a hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from ravnest.errors import HashMismatchError, PlanFileError
from ravnest.plan.codec import RUN_AGAIN, decode, encode, sealed
from ravnest.plan.identity import node_name
from ravnest.plan.layout import PLAN_FILE, is_plan_path, node_file, stage_folder
from ravnest.plan.model import NodePlan, Plan
from ravnest.plan.nodes import node_plans
from ravnest.plan.parts import FileDigest, StagePlan
from ravnest.plan.replacing import OnStep, recover, replace_files

_log = logging.getLogger(__name__)


def write_plan(
    node_data: Path,
    plan: Plan,
    write_stage: Callable[[StagePlan, Path], None],
    *,
    on_step: OnStep = lambda step: None,
) -> Plan:
    """Replaces the plan below node_data, stage files included, as a whole or not at all.

    Args:
        plan: without file digests and hash.
        write_stage: writes the files of a stage into the folder it gets, no folders below it.
        on_step: called with a description before every change on disk; tests interrupt here.

    Returns:
        The plan as written: with digests and hash.
    """
    written: list[Plan] = []

    def fill(new: Path) -> None:
        stages = []
        for stage in plan.stages:
            on_step(f"write stage of node {stage.node_id}")
            folder = new / stage_folder(stage.cluster_id, stage.node_id)
            folder.mkdir(parents=True)
            write_stage(stage, folder)
            stages.append(dataclasses.replace(stage, files=_digests(new, folder)))
        whole = sealed(dataclasses.replace(plan, stages=tuple(stages)))
        for node_plan in node_plans(whole):
            on_step(f"write plan of node {node_plan.node_id}")
            path = new / node_file(node_plan.node_id)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(encode(sealed(node_plan)))
        on_step("write plan")
        (new / PLAN_FILE).write_bytes(encode(whole))
        written.append(whole)

    replace_files(node_data, fill, lambda: _old_paths(node_data), on_step=on_step)
    return written[0]


def load_plan(node_data: Path) -> Plan:
    """The plan of a folder.

    Raises:
        PlanFileError: plan.json is missing, damaged or of another schema.
        HashMismatchError: plan.json has been changed since it was written.
    """
    recover(node_data)
    path = node_data / PLAN_FILE
    return decode(Plan, _read(path, "run clusterize first"), path)


def load_node_plan(node_data: Path, node_id: int) -> NodePlan:
    """What one node needs; reads its own file only.

    Raises:
        PlanFileError: the plan has no such node (the message lists those it has), or the file is
            damaged or of another schema.
        HashMismatchError: the file has been changed since it was written.
    """
    recover(node_data)
    path = node_data / node_file(node_id)
    if not path.is_file():
        raise _no_node(node_data, node_id)
    node_plan = decode(NodePlan, _read(path, RUN_AGAIN), path)
    if node_plan.node_id != node_id:
        raise PlanFileError(
            f"{path} is the plan of node {node_plan.node_id}, expected that of node {node_id}",
            hint="copy the file under its own name",
        )
    return node_plan


def verify_stage_files(node_data: Path, node_plan: NodePlan) -> None:
    """Checks size and hash of the stage's files before anything reads them.

    Raises:
        PlanFileError: a file is missing.
        HashMismatchError: a file is not the one the plan was made with.
    """
    recover(node_data)
    folder = stage_folder(node_plan.cluster_id, node_plan.node_id)
    for digest in node_plan.files:
        if not is_plan_path(digest.path) or not digest.path.startswith(f"{folder}/"):
            raise PlanFileError(
                f"the plan of node {node_plan.node_id} names a file {digest.path!r}; "
                f"expected files in {folder}"
            )
        path = node_data / digest.path
        if not path.is_file():
            raise PlanFileError(
                f"{path} is missing; node {node_plan.node_id} needs it",
                hint=f"copy the whole folder {folder} from where clusterize ran",
            )
        _verify(path, digest)


def _verify(path: Path, expected: FileDigest) -> None:
    num_bytes = path.stat().st_size
    if num_bytes != expected.num_bytes:
        raise HashMismatchError(
            f"{path} has {num_bytes} bytes, expected {expected.num_bytes}", hint=RUN_AGAIN
        )
    actual = _sha256(path)
    if actual != expected.sha256:
        raise HashMismatchError(
            f"{path} has been changed since it was written: it hashes to {actual}, "
            f"expected {expected.sha256}",
            hint=RUN_AGAIN,
        )


def _no_node(node_data: Path, node_id: int) -> PlanFileError:
    """Says which nodes there are, and why this one is not among them."""
    name = node_name(node_id)
    if not (node_data / PLAN_FILE).is_file():
        names = sorted(path.stem for path in (node_data / "nodes").glob("node_*.json"))
        found = f"there is {', '.join(names)}" if names else "there is no plan of any node"
        return PlanFileError(
            f"{node_data / node_file(node_id)} is missing; {found}",
            hint=f"run clusterize, or copy the file and the folder of {name} from where it ran",
        )
    plan = load_plan(node_data)
    if node_id in plan.unused:
        reason = plan.unused[node_id]
        return PlanFileError(f"{name} has no part in the plan: {reason}", hint="do not start it")
    used = sorted(stage.node_id for stage in plan.stages)
    if node_id in used:
        return PlanFileError(f"{node_data / node_file(node_id)} is missing", hint=RUN_AGAIN)
    return PlanFileError(
        f"{name} is not in the plan; its nodes are {', '.join(map(node_name, used))}",
        hint="name the node by its id in node_configs.json, and run clusterize after changing that",
    )


def _old_paths(node_data: Path) -> tuple[str, ...]:
    """The files an earlier clusterize wrote, by its plan; none when that cannot be trusted."""
    path = node_data / PLAN_FILE
    if not path.is_file():
        return ()
    try:
        plan = decode(Plan, _read(path, RUN_AGAIN), path)
    except PlanFileError as error:
        _log.warning("the files of the plan before stay, for it cannot be read: %s", error.message)
        return ()
    stage_files = [digest.path for stage in plan.stages for digest in stage.files]
    return (PLAN_FILE, *(node_file(stage.node_id) for stage in plan.stages), *stage_files)


def _digests(new: Path, folder: Path) -> tuple[FileDigest, ...]:
    return tuple(
        FileDigest(path.relative_to(new).as_posix(), _sha256(path), path.stat().st_size)
        for path in sorted(folder.iterdir())
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path, hint: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise PlanFileError(f"{path} does not exist", hint=hint) from None
    except OSError as error:
        raise PlanFileError(f"{path} cannot be read: {error.strerror or error}") from error
