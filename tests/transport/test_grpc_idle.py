"""An idle or waiting node uses no processor time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

HERE = Path(__file__).parent
# What a waiting node may use, as promised; a gRPC server that does nothing takes half of it.
MAX_SHARE = 0.02


@pytest.mark.parametrize(("scene", "num_nodes"), [("absent", 1), ("silent", 2)])
def test_waiting_takes_no_processor_time(grpc_nodes, scene, num_nodes):
    addresses = [grpc_nodes.addresses[node] for node in (0, 1)]
    finished = subprocess.run(
        [sys.executable, str(HERE / "idle_share.py"), scene, *addresses],
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    share, state = finished.stdout.split()
    assert state == "waiting"
    assert float(share) < num_nodes * MAX_SHARE
