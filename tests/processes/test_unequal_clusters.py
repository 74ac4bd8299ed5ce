"""Two clusters that are cut differently hold the same bytes after each averaging: the mean."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from oracle_model import Residual
from safetensors.torch import load_file

from ravnest import clusterize, model_fusion, set_seed

SCRIPT = str(Path(__file__).parent / "scripts" / "averaging_provider.py")

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_clusters_of_three_and_two_nodes_average_to_identical_bytes(
    tmp_path: Path, processes: object, node_configs: Callable[..., Path]
) -> None:
    node_data = node_configs(tmp_path, 5)
    set_seed(3)
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(
            Residual(0.2), (torch.zeros(8, 3, 8, 8),), node_data=node_data, num_clusters=2
        )
    assert sorted(map(len, plan.clusters)) == [2, 3]
    rings_of = [sum(s.node_id in ring.members for ring in plan.rings) for s in plan.stages]
    assert max(rings_of) > 1, "a stage that is split in the other cluster is in several rings"
    for stage in plan.stages:
        processes.start([SCRIPT, f"node_{stage.node_id}"], cwd=tmp_path)  # type: ignore[attr-defined]
    processes.wait_all()  # type: ignore[attr-defined]

    num_rounds = len(list(tmp_path.glob("node_0_*_after.safetensors")))
    assert num_rounds >= 5, "80 batches over two clusters, 10 steps per averaging, and the last"
    for number in range(num_rounds):
        before = [cluster_tensors(tmp_path, c, number, "before") for c in plan.clusters]
        after = [cluster_tensors(tmp_path, c, number, "after") for c in plan.clusters]
        assert before[0]["num_samples"] == before[1]["num_samples"]
        for name in plan.state_names:
            assert after[0][name].numpy().tobytes() == after[1][name].numpy().tobytes(), name
            one, two = before[0][name], before[1][name]
            if int(before[0]["num_samples"]) == 0:
                expected = one  # nobody has trained since the last round
            elif one.is_floating_point():
                expected = (one.double() + two.double()) / 2
            else:
                expected = torch.maximum(one, two)
            torch.testing.assert_close(
                after[0][name].to(expected.dtype), expected, rtol=1e-6, atol=1e-7, msg=name
            )
    fused = [model_fusion(c, node_data=node_data, trained=tmp_path / "trained") for c in range(2)]
    assert all(torch.equal(fused[0][name], fused[1][name]) for name in fused[0])


def cluster_tensors(
    folder: Path, nodes: tuple[int, ...], number: int, when: str
) -> dict[str, torch.Tensor]:
    """Everything one cluster holds, of all its nodes."""
    merged: dict[str, torch.Tensor] = {}
    for node_id in nodes:
        merged |= load_file(folder / f"node_{node_id}_{number}_{when}.safetensors")
    return merged
