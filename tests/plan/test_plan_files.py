"""plan.json, node files and stage files: round trips, and every way they can be wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ravnest.errors import HashMismatchError, PlanFileError
from ravnest.plan.codec import canonical_json, decode, encode, sealed
from ravnest.plan.files import load_node_plan, load_plan, verify_stage_files, write_plan
from ravnest.plan.identity import Role
from ravnest.plan.model import Plan
from ravnest.plan.parts import PeerSpec, Replica, RingMembership, SharedParameter, StagePlan

WriteStage = Callable[[StagePlan, Path], None]


@pytest.fixture
def node_data(tmp_path: Path, published_plan: Plan, write_stage: WriteStage) -> Path:
    write_plan(tmp_path, published_plan, write_stage)
    return tmp_path


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))


def _resealed(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """An edit by someone who also corrects the hash."""
    import hashlib

    def both(content: dict[str, Any]) -> None:
        del content["sha256"]
        change(content)
        content["sha256"] = hashlib.sha256(canonical_json(content)).hexdigest()

    _edit(path, both)


def test_a_plan_survives_the_round_trip(
    tmp_path: Path, published_plan: Plan, write_stage: WriteStage
) -> None:
    written = write_plan(tmp_path, published_plan, write_stage)
    assert load_plan(tmp_path) == written
    assert len(written.sha256) == 64
    assert [digest.path for digest in written.stages[0].files] == [
        "cluster_0/node_1/graph.json",
        "cluster_0/node_1/weights.safetensors",
    ]


def test_the_files_are_those_of_the_contract_and_always_the_same_bytes(
    tmp_path: Path, published_plan: Plan, write_stage: WriteStage
) -> None:
    contents = []
    for name in ("one", "two"):
        write_plan(tmp_path / name, published_plan, write_stage)
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        contents.append(
            {path.relative_to(tmp_path / name).as_posix(): path.read_bytes() for path in files}
        )
    assert contents[0] == contents[1]
    places = ((0, 1), (0, 2), (0, 5), (1, 0), (1, 3), (1, 4))
    assert set(contents[0]) == {
        "plan.json",
        *(f"nodes/node_{i}.json" for i in range(6)),
        *(f"cluster_{c}/node_{i}/graph.json" for c, i in places),
        *(f"cluster_{c}/node_{i}/weights.safetensors" for c, i in places),
    }


def test_a_node_plan_has_all_that_a_node_needs(node_data: Path) -> None:
    plan = load_plan(node_data)
    stem = load_node_plan(node_data, 3)
    assert (stem.cluster_id, stem.num_clusters, stem.stage, stem.num_stages) == (1, 2, 1, 3)
    assert (stem.role, stem.is_root, stem.is_leaf) == (Role.STEM, False, False)
    assert (stem.backward_target, stem.forward_target) == (0, 4)
    assert (stem.address, stem.bind) == ("0.0.0.0:8083", "127.0.0.1:8083")
    assert stem.rings == (RingMembership(1, 1, 2, (2, 3), ("dense_1.weight",), ()),)
    # Dialled on loopback, though the file of the user says 0.0.0.0.
    slower = {i: min(plan.node(3).bandwidth_bps, plan.node(i).bandwidth_bps) for i in (0, 2, 4)}
    assert stem.peers == tuple(
        PeerSpec(i, f"127.0.0.1:{8080 + i}", rate_bps) for i, rate_bps in slower.items()
    )
    assert stem.files == plan.stage_of(3).files
    assert stem.plan_sha256 == plan.sha256
    root, leaf = load_node_plan(node_data, 1), load_node_plan(node_data, 4)
    assert (root.role, root.backward_target, root.is_root) == (Role.ROOT, None, True)
    assert (leaf.role, leaf.forward_target, leaf.is_leaf) == (Role.LEAF, None, True)


def test_owners_and_holders_of_a_parameter_know_each_other(
    tmp_path: Path, published_plan: Plan, write_stage: WriteStage
) -> None:
    name = "conv2d_1.bias"
    owners = {0: 1, 1: 0}  # the root of each cluster
    stages = tuple(
        dataclasses.replace(stage, replicas=(Replica(name, owners[stage.cluster_id]),))
        if stage.node_id in (2, 5, 4)
        else stage
        for stage in published_plan.stages
    )
    write_plan(tmp_path, dataclasses.replace(published_plan, stages=stages), write_stage)
    assert load_plan(tmp_path).stage_of(2).replicas == (Replica(name, 1),)
    plans = {i: load_node_plan(tmp_path, i) for i in range(6)}
    assert {i: plan.shared for i, plan in plans.items() if plan.shared} == {
        1: (SharedParameter(name, (2, 5)),),
        0: (SharedParameter(name, (4,)),),
    }
    assert {i: plan.replicas for i, plan in plans.items() if plan.replicas} == {
        2: (Replica(name, 1),),
        5: (Replica(name, 1),),
        4: (Replica(name, 0),),
    }
    assert {1, 2} <= {peer.node_id for peer in plans[5].peers}
    assert {2, 5} <= {peer.node_id for peer in plans[1].peers}


def test_a_node_needs_only_its_own_files(node_data: Path, tmp_path: Path) -> None:
    (node_data / "plan.json").unlink()
    for node_id in (0, 1, 2, 4, 5):
        (node_data / f"nodes/node_{node_id}.json").unlink()
    node_plan = load_node_plan(node_data, 3)
    verify_stage_files(node_data, node_plan)
    with pytest.raises(PlanFileError, match=r"nodes/node_4\.json is missing; there is node_3"):
        load_node_plan(node_data, 4)


def test_nothing_there_says_to_run_clusterize(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match=r"plan\.json does not exist\n.*run clusterize"):
        load_plan(tmp_path)
    with pytest.raises(PlanFileError, match=r"no plan of any node\n.*run clusterize"):
        load_node_plan(tmp_path, 0)


def test_an_unknown_node_is_told_which_there_are(node_data: Path) -> None:
    with pytest.raises(PlanFileError, match="node_9 is not in the plan; its nodes are node_0, nod"):
        load_node_plan(node_data, 9)


def test_an_unused_node_is_told_why(
    tmp_path: Path, plan_of: Callable[..., Plan], write_stage: WriteStage
) -> None:
    write_plan(tmp_path, plan_of(((0, 1, 2),), spare=1), write_stage)
    with pytest.raises(PlanFileError, match="node_3 has no part in the plan: it would slow"):
        load_node_plan(tmp_path, 3)


def test_an_edited_plan_is_refused_with_both_hashes(node_data: Path) -> None:
    expected = load_plan(node_data).sha256
    _edit(node_data / "plan.json", lambda plan: plan["clusters"][0].reverse())
    with pytest.raises(HashMismatchError, match=r"plan\.json has been changed") as caught:
        load_plan(node_data)
    assert f"expected {expected}" in caught.value.message
    assert "run clusterize again" in str(caught.value.hint)


def test_other_line_endings_are_no_edit(node_data: Path) -> None:
    path = node_data / "nodes/node_0.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    load_node_plan(node_data, 0)


@given(st.data())
def test_every_edit_of_a_value_is_noticed(plan_of: Callable[..., Plan], data: Any) -> None:
    plan = sealed(plan_of(((0, 1, 2),)))
    content = json.loads(encode(plan))
    holder: Any = content
    while isinstance(holder, (dict, list)) and holder:
        keys = sorted(holder) if isinstance(holder, dict) else range(len(holder))
        parent, key = holder, data.draw(st.sampled_from(keys))
        holder = parent[key]
    parent[key] = data.draw(st.integers() | st.text() | st.none() | st.booleans())
    if canonical_json(content) == encode(plan):
        return
    with pytest.raises(PlanFileError):
        decode(Plan, json.dumps(content).encode(), Path("plan.json"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is damaged"),
        (b"[]", "is damaged: it holds no JSON object"),
        (b"\xff", "is damaged"),
        (b'{"schema": 1, "schema": 1}', "is damaged: a key occurs twice"),
        (b'{"schema": NaN}', "is damaged: NaN is no JSON number"),
        (b"[" * 100_000, "is damaged"),
        (b"{}", "has schema None; this version of ravnest reads 8"),
        (b'{"schema": 1}', "has schema 1; this version of ravnest reads 8"),
    ],
)
def test_what_is_no_plan_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(PlanFileError, match=words):
        load_plan(tmp_path)


def test_wrong_types_and_unknown_keys_are_refused_though_the_hash_fits(node_data: Path) -> None:
    path = node_data / "nodes/node_0.json"
    good = path.read_bytes()
    for change, words in (
        (lambda plan: plan.update(stage=True), "is damaged"),
        (lambda plan: plan.update(stage="0"), "is damaged"),
        (lambda plan: plan.update(role="king"), "is damaged"),
        (lambda plan: plan.pop("bind"), "is damaged"),
        (lambda plan: plan.update(shell="rm"), "keys that this version"),
    ):
        path.write_bytes(good)
        _resealed(path, change)
        with pytest.raises(PlanFileError, match=words):
            load_node_plan(node_data, 0)


def test_a_node_file_under_another_name_is_refused(node_data: Path) -> None:
    (node_data / "nodes/node_0.json").replace(node_data / "nodes/node_1.json")
    with pytest.raises(PlanFileError, match="is the plan of node 0, expected that of node 1"):
        load_node_plan(node_data, 1)


def test_stage_files_are_verified(node_data: Path) -> None:
    node_plan = load_node_plan(node_data, 3)
    verify_stage_files(node_data, node_plan)
    weights = node_data / "cluster_1/node_3/weights.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1])
    with pytest.raises(HashMismatchError, match=f"has {len(good) - 1} bytes, expected {len(good)}"):
        verify_stage_files(node_data, node_plan)
    weights.write_bytes(b"!" + good[1:])
    with pytest.raises(HashMismatchError, match=r"weights\.safetensors has been changed") as caught:
        verify_stage_files(node_data, node_plan)
    assert node_plan.files[1].sha256 in caught.value.message
    weights.unlink()
    with pytest.raises(PlanFileError, match=r"(?s)is missing; node 3 needs it.*cluster_1/node_3"):
        verify_stage_files(node_data, node_plan)


def test_a_node_plan_cannot_name_files_elsewhere(node_data: Path) -> None:
    path = node_data / "nodes/node_3.json"
    good = path.read_bytes()
    for name in ("../secret", "/etc/passwd", "cluster_1/node_3/../../x", "cluster_0/node_1/a"):
        path.write_bytes(good)
        _resealed(path, lambda plan, name=name: plan["files"][0].update(path=name))
        with pytest.raises(PlanFileError, match=r"expected files in cluster_1/node_3"):
            verify_stage_files(node_data, load_node_plan(node_data, 3))
