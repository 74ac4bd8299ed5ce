"""How benchmarks have a workload cut."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from benchmarks.workloads import Workload
from ravnest import clusterize
from ravnest.plan.model import Plan


def cut_workload(
    workload: Workload, node_data: Path, schedule: str, *, dry_run: bool = False
) -> Plan:
    """Plans one cluster for the nodes that are described in `node_data`; prints nothing."""
    example = workload.inputs[: len(workload.inputs) // workload.num_microbatches]
    with redirect_stdout(StringIO()):
        return clusterize(
            workload.build(),
            example_args=(example,),
            node_data=node_data,
            num_clusters=1,
            schedule=schedule,
            update_frequency=workload.num_microbatches,
            leaves=dict(workload.leaves) or None,
            dry_run=dry_run,
        )
