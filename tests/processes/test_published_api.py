"""A script written for the published API runs unchanged, whatever the order of the nodes' start."""

from __future__ import annotations

import contextlib
import io
import itertools
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from oracle_model import Residual

from ravnest import clusterize, model_fusion, set_seed

SCRIPT = str(Path(__file__).parent / "scripts" / "published_api.py")

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def wait_until_listening(address: str, deadline_s: float = 60) -> None:
    """Returns once something listens at `host:port`."""
    host, port = address.rsplit(":", 1)
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens at {address}")


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2)], ids=str)
def test_a_subclassed_trainer_runs_in_any_start_order(
    order: tuple[int, ...], tmp_path: Path, processes: object, node_configs: Callable[..., Path]
) -> None:
    node_data = node_configs(tmp_path, 3)
    set_seed(42)
    model = Residual()
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(model, (torch.zeros(16, 3, 8, 8),), node_data=node_data, num_clusters=1)
    chain = plan.clusters[0]
    for place, following in itertools.zip_longest(order, order[1:]):
        node_id = chain[place]
        processes.start([SCRIPT, f"node_{node_id}"], cwd=tmp_path)  # type: ignore[attr-defined]
        if following is not None:  # the next one starts when this one is surely up
            wait_until_listening(plan.node(node_id).address)
    processes.wait_all()  # type: ignore[attr-defined]
    model.load_state_dict(model_fusion(node_data=node_data, trained=tmp_path / "trained"))
    assert len((tmp_path / "losses.txt").read_text().split()) == 12
    assert len((tmp_path / "val_accuracies.txt").read_text().split()) == 2


def test_six_nodes_in_two_clusters_run_the_same_script(
    tmp_path: Path, processes: object, node_configs: Callable[..., Path]
) -> None:
    node_data = node_configs(tmp_path, 4)
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(
            Residual(), (torch.zeros(16, 3, 8, 8),), node_data=node_data, num_clusters=2
        )
    script = Path(SCRIPT).read_text().replace("n_backwards == 12", "n_backwards == 6")
    (tmp_path / "provider.py").write_text(script)
    for stage in plan.stages:
        processes.start(["provider.py", f"node_{stage.node_id}"], cwd=tmp_path)  # type: ignore[attr-defined]
    processes.wait_all()  # type: ignore[attr-defined]
    assert len((tmp_path / "losses_cluster_1.txt").read_text().split()) == 6
