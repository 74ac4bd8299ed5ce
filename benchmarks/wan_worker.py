"""One provider of `benchmarks.wan_clusters`; its event log has the time of every optimizer step.

`python -m benchmarks.wan_worker NAME OPTIONS`, with OPTIONS as JSON: how long a microbatch takes
this node, how many a cluster gets on average, and arguments of `Node`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch

from benchmarks.waits import WAIT_VARIABLE
from benchmarks.workloads import WORKLOADS

WORKLOAD = "heavy waits"
NUM_CLUSTERS = 2


def main(name: str, options: dict[str, Any]) -> None:
    """Trains for a while."""
    from ravnest import Node, Trainer

    torch.set_num_threads(1)
    os.environ[WAIT_VARIABLE] = str(options["wait_s"])
    workload = WORKLOADS[WORKLOAD]()
    num_steps = -(-NUM_CLUSTERS * options["num_microbatches"] // workload.num_microbatches)
    loader = workload.loader(num_steps)
    with Node(
        name=name,
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": 1e-3},
        criterion=lambda output, targets: workload.loss(output, targets[1]),
        trusted_modules=tuple(workload.leaves.values()),
        insecure=True,
        **options["node"],
    ) as node:
        Trainer(node=node, train_loader=loader).train()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
