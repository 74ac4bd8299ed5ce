"""An owner or a frame that says something else about shared parameters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from node_harness import make_plan, run_nodes
from tied_harness import BATCH, SETTINGS, VOCABULARY, WIDTH, X, build, train

from ravnest import Node
from ravnest.errors import PeerFailedError, PlanFileError, ProtocolError
from ravnest.node.loading import load_node
from ravnest.plan.codec import encode, sealed
from ravnest.plan.files import load_node_plan
from ravnest.plan.layout import node_file
from ravnest.wire.frame import Frame, FrameKind

FAULTS: dict[str, tuple[Frame, str]] = {
    "kind": (Frame(FrameKind.SAVE, weight_version=1), "sent SAVE number 1, expected tied values"),
    "number": (Frame(FrameKind.TIED_VALUES, weight_version=2), "TIED_VALUES number 2, expected"),
    "nothing": (Frame(FrameKind.TIED_VALUES, weight_version=1), r"no values of \['wte.weight'\]"),
    "name": (
        Frame(FrameKind.TIED_VALUES, weight_version=1, tensors={"norm.bias": torch.zeros(WIDTH)}),
        r"sent tensors \['norm.bias'\], expected some of \['wte.weight'\]",
    ),
    "shape": (
        Frame(FrameKind.TIED_VALUES, weight_version=1, tensors={"wte.weight": torch.zeros(2, 3)}),
        r"shape \(2, 3\) and torch.float32, expected \(11, 8\) and torch.float32",
    ),
    "dtype": (
        Frame(
            FrameKind.TIED_VALUES,
            weight_version=1,
            tensors={"wte.weight": torch.zeros(VOCABULARY, WIDTH, dtype=torch.int64)},
        ),
        r"shape \(11, 8\) and torch.int64, expected \(11, 8\) and torch.float32",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_owner_that_sends_something_else_is_refused(fault: str, tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=2)
    root, leaf = run.plan.clusters[0]
    frame, message = FAULTS[fault]

    def script(node: Node) -> None:
        if node.node_type == "root":
            node._parts.links.send_tied(leaf, frame)
        train(node)

    run_nodes(run, script, **SETTINGS)
    with pytest.raises(ProtocolError, match=message):
        raise run.errors[leaf]
    assert isinstance(run.errors[root], PeerFailedError)


def test_a_frame_that_does_not_say_which_values_it_used_is_refused(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=2)
    root, leaf = run.plan.clusters[0]

    def script(node: Node) -> None:
        if node.node_type == "root":
            node._parts.tied.before_pass = lambda frame, version=None: frame  # type: ignore[method-assign]
        train(node)

    run_nodes(run, script, **SETTINGS)
    with pytest.raises(ProtocolError, match=f"does not say which values of node {root}"):
        raise run.errors[leaf]


def test_a_plan_with_other_replicas_than_the_stage_is_refused(tmp_path: Path) -> None:
    run = make_plan(tmp_path, build(), (X[:BATCH],), nodes=2)
    leaf = run.plan.clusters[0][-1]
    folder = tmp_path / "node_data"
    plan = replace(load_node_plan(folder, leaf), replicas=())
    (folder / node_file(leaf)).write_bytes(encode(sealed(plan)))
    with pytest.raises(PlanFileError, match=r"has replicas {'wte.weight': 0} .* says {}"):
        load_node(folder, leaf)
