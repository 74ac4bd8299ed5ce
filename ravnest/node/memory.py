"""Says what a stage ran out of memory for, with the plan's figures beside the measured ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ravnest.errors import TrainingError
from ravnest.plan.model import NodePlan
from ravnest.stage.running_out import gigabytes, is_out_of_memory, memory_in_use


class MemoryWatch:
    """Watches what one stage computes on its device."""

    def __init__(self, plan: NodePlan, device: torch.device) -> None:
        self._plan = plan
        self._device = device

    @contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Raises TrainingError when `what` runs out of memory; other errors stay as they are."""
        try:
            yield
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            plan = self._plan
            raise TrainingError(
                f"node {plan.node_id} ran out of memory in {what} on stage {plan.stage}: "
                f"{_first_line(error)}. The plan counted {gigabytes(plan.needed_bytes)} of the "
                f"{gigabytes(plan.memory_bytes)} that the node offers; "
                f"{memory_in_use(self._device)}",
                hint="use smaller batches or more num_microbatches, pass Node(recompute=True), or "
                "lower benchmarks.ram of this node and run clusterize again",
            ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")[:300]
