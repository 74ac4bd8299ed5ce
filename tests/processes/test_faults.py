"""What a user sees when something is wrong: a clear error on every node, and no hang."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracle_model import Residual

from ravnest import clusterize
from ravnest.plan.model import Plan

SCRIPT = str(Path(__file__).parent / "scripts" / "failing_provider.py")

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
def plan(tmp_path: Path, node_configs: Callable[..., Path]) -> Plan:
    """Three nodes in one cluster, in `tmp_path`."""
    node_data = node_configs(tmp_path, 3)
    with contextlib.redirect_stdout(io.StringIO()):
        return clusterize(
            Residual(), (torch.zeros(8, 3, 8, 8),), node_data=node_data, num_clusters=1
        )


def start(processes: Any, plan: Plan, folder: Path, fault: str, timeout_s: float = 60) -> list[Any]:
    """All nodes of the cluster, from root to leaf."""
    return [
        processes.start([SCRIPT, f"node_{node_id}", fault, str(timeout_s)], cwd=folder)
        for node_id in plan.clusters[0]
    ]


def test_a_failing_criterion_ends_every_node_with_the_first_cause(
    tmp_path: Path, processes: Any, plan: Plan
) -> None:
    started = start(processes, plan, tmp_path, "criterion")
    for process in started:
        assert process.wait() == 1
        assert "ZeroDivisionError: the criterion divides by zero on purpose" in process.output
    leaf = plan.clusters[0][2]
    assert f"node {leaf} failed" in started[0].output
    assert f"[c0/s2 node_{leaf}]" in started[0].output


def test_labels_in_another_order_are_noticed_at_the_first_batch(
    tmp_path: Path, processes: Any, plan: Plan
) -> None:
    started = start(processes, plan, tmp_path, "order")
    for process in started:
        assert process.wait() == 1
        assert "batch 0 of epoch 0 differs between root and leaf" in process.output


def test_a_killed_node_ends_the_others_within_seconds(
    tmp_path: Path, processes: Any, plan: Plan
) -> None:
    root, stem, leaf = start(processes, plan, tmp_path, "stall")
    wait_for_file(tmp_path / "stalled")
    stem.popen.kill()
    killed = time.monotonic()
    assert leaf.wait(20) == 1
    assert time.monotonic() - killed < 15
    assert f"node {plan.clusters[0][1]}" in leaf.output
    root.popen.kill()


def test_ctrl_c_ends_a_node_and_frees_its_port(tmp_path: Path, processes: Any, plan: Plan) -> None:
    root, stem, leaf = start(processes, plan, tmp_path, "stall")
    wait_for_file(tmp_path / "stalled")
    stem.popen.send_signal(signal.SIGINT)
    interrupted = time.monotonic()
    assert stem.wait(10) != 0
    assert time.monotonic() - interrupted < 5
    assert leaf.wait(20) == 1
    assert "KeyboardInterrupt" in leaf.output
    root.popen.kill()
    root.popen.wait()
    host, port = plan.node(plan.clusters[0][1]).address.rsplit(":", 1)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((host, int(port)))


def test_a_peer_that_never_comes_is_named(tmp_path: Path, processes: Any, plan: Plan) -> None:
    node_id = plan.clusters[0][1]
    stem = processes.start([SCRIPT, f"node_{node_id}", "none", "2"], cwd=tmp_path)
    assert stem.wait() == 1
    root = plan.clusters[0][0]
    assert "PeerUnreachableError" in stem.output
    assert f"node {root}" in stem.output
    assert plan.node(root).address in stem.output
    assert "refused" in stem.output


def test_a_port_in_use_is_named(tmp_path: Path, processes: Any, plan: Plan) -> None:
    node = plan.node(plan.clusters[0][0])
    host, port = node.bind.rsplit(":", 1)
    with socket.socket() as taken:
        taken.bind((host, int(port)))
        taken.listen()
        root = processes.start([SCRIPT, f"node_{node.node_id}", "none", "5"], cwd=tmp_path)
        assert root.wait() == 1
    assert "AddressInUseError" in root.output
    assert port in root.output
    assert not (tmp_path / "losses.txt").exists()


def test_a_node_that_is_not_in_the_plan_is_named(
    tmp_path: Path, processes: Any, plan: Plan
) -> None:
    process = processes.start([SCRIPT, "node_7", "none", "5"], cwd=tmp_path)
    assert process.wait() == 1
    assert "PlanFileError" in process.output
    assert "node_7" in process.output or "node 7" in process.output


@pytest.mark.parametrize("name", ["0", "node_x", "Node_0", "node_01", "node_"])
def test_a_bad_node_name_is_explained(
    name: str, tmp_path: Path, processes: Any, plan: Plan
) -> None:
    process = processes.start([SCRIPT, name, "none", "5"], cwd=tmp_path)
    assert process.wait() == 1
    assert "expected node_<id>" in process.output


@pytest.mark.parametrize("file", ["graph.json", "weights.safetensors", "node"])
def test_an_edited_file_is_refused(file: str, tmp_path: Path, processes: Any, plan: Plan) -> None:
    node_id = plan.clusters[0][0]
    edited = tmp_path / "node_data" / "nodes" / f"node_{node_id}.json"
    if file != "node":
        edited = tmp_path / "node_data" / "cluster_0" / f"node_{node_id}" / file
    data = edited.read_bytes()
    if file == "node":
        content = json.loads(data)
        content["num_stages"] = 2
        edited.write_text(json.dumps(content))
    else:
        edited.write_bytes(data[:-2] + b" \n" if file == "graph.json" else data[:-1] + b"\x01")
    process = processes.start([SCRIPT, f"node_{node_id}", "none", "5"], cwd=tmp_path)
    assert process.wait() == 1
    assert "HashMismatchError" in process.output
    assert edited.name in process.output


def test_nodes_of_two_plans_refuse_each_other(tmp_path: Path, processes: Any, plan: Plan) -> None:
    other = tmp_path / "other"
    (other / "node_data").mkdir(parents=True)
    configs = tmp_path / "node_data" / "node_configs.json"
    (other / "node_data" / "node_configs.json").write_bytes(configs.read_bytes())
    torch.manual_seed(99)
    with contextlib.redirect_stdout(io.StringIO()):
        clusterize(
            Residual(), (torch.zeros(8, 3, 8, 8),), node_data=other / "node_data", num_clusters=1
        )
    root, stem, _ = plan.clusters[0]
    first = processes.start([SCRIPT, f"node_{root}", "none", "20"], cwd=tmp_path)
    second = processes.start([SCRIPT, f"node_{stem}", "none", "20"], cwd=other)
    assert first.wait() == 1
    assert second.wait() == 1
    assert "plan" in first.output
    assert "ProtocolError" in first.output


def wait_for_file(path: Path, deadline_s: float = 60) -> None:
    """Returns once the file is there."""
    end = time.monotonic() + deadline_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} never came"
        time.sleep(0.05)
