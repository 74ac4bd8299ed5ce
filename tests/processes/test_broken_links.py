"""Real provider processes whose links break again and again train the very same bits."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting_proxy import CuttingProxy
from oracle_model import Residual

from ravnest import clusterize, model_fusion, set_seed

HERE = Path(__file__).parent / "scripts"

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.fixture
def proxy() -> Iterator[CuttingProxy]:
    source = random.Random(4)
    made = CuttingProxy(int(2 ** source.uniform(11, 15)) for _ in range(30))
    yield made
    made.close()


def train(
    folder: Path,
    processes: Any,
    node_configs: Callable[..., Path],
    script: str,
    proxy: CuttingProxy | None = None,
) -> tuple[dict[str, torch.Tensor], str, str]:
    """Fused weights of two stages, losses, and what root and leaf said."""
    folder.mkdir()
    node_data = node_configs(folder, 2)
    if proxy is not None:
        file = node_data / "node_configs.json"
        nodes = json.loads(file.read_text())
        for node in nodes.values():
            node["bind"] = node["IP"]
            node["IP"] = f"127.0.0.1:{proxy.port_for(int(node['IP'].rpartition(':')[2]))}"
        file.write_text(json.dumps(nodes))
    set_seed(3)
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(
            Residual(), (torch.zeros(8, 3, 8, 8),), node_data=node_data, num_clusters=1
        )
    started = [
        processes.start([str(HERE / script), f"node_{node_id}", "1f1b"], cwd=folder)
        for node_id in plan.clusters[0]
    ]
    for process in started:
        assert process.wait() == 0, process.output
    fused = model_fusion(node_data=node_data, trained=folder / "trained")
    losses = (folder / "losses.txt").read_text()
    return fused, losses, "".join(process.output for process in started)


def test_broken_links_change_no_bit(
    tmp_path: Path, processes: Any, node_configs: Callable[..., Path], proxy: Any
) -> None:
    """Nor does it matter whether frames go beside gRPC, as at first, or over it and the proxy."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    expected, losses, _ = train(whole, processes, node_configs, "oracle_provider.py")
    fused, again, said = train(cut, processes, node_configs, "oracle_over_grpc_provider.py", proxy)
    assert proxy.num_cut >= 5
    assert "the link to node" in said
    assert "nothing is lost" in said
    assert losses == again
    assert all(torch.equal(fused[name], expected[name]) for name in expected)
