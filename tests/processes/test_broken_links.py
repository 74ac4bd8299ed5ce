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
    made = CuttingProxy(int(2 ** source.uniform(11, 18)) for _ in range(40))
    yield made
    made.close()


def train(
    folder: Path,
    processes: Any,
    node_configs: Callable[..., Path],
    script: str,
    proxy: CuttingProxy | None = None,
) -> tuple[dict[str, torch.Tensor], str]:
    """Fused weights of two stages, and what the root and the leaf said."""
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
    return fused | {"losses": losses}, "".join(process.output for process in started)


@pytest.mark.parametrize("script", ["oracle_provider.py", "oracle_over_grpc_provider.py"])
def test_broken_links_change_no_bit(
    script: str, tmp_path: Path, processes: Any, node_configs: Callable[..., Path], proxy: Any
) -> None:
    expected, _ = train(tmp_path / "whole", processes, node_configs, script)
    fused, output = train(tmp_path / "cut", processes, node_configs, script, proxy)
    assert proxy.num_cut >= 10
    assert "the link to node" in output
    assert "nothing is lost" in output
    assert fused.pop("losses") == expected.pop("losses")
    assert all(torch.equal(fused[name], expected[name]) for name in expected)
