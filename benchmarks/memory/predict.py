"""Plans a case in the current folder and writes what is predicted of every node.

`python -m benchmarks.memory.predict CASE OUTPUT`, both JSON.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.memory.cases import OPTIMIZERS, UPDATE_FREQUENCY, Case
from benchmarks.memory.models import SUBJECTS
from ravnest import clusterize
from ravnest.capture.exporting import capture_model
from ravnest.planning.budget.memory import MemoryModel
from ravnest.planning.budget.optimizer_states import ask_optimizer
from ravnest.planning.inputs.settings import PlanningSettings
from ravnest.planning.inputs.table import cost_table
from ravnest.stage.schedule import Schedule


def predict(case: Case) -> list[dict[str, Any]]:
    """Plans; per node its predicted bytes, in parts."""
    subject = SUBJECTS[case.model]()
    model = subject.build()
    optimizer, params = OPTIMIZERS[case.optimizer]
    with redirect_stdout(StringIO()):
        plan = clusterize(
            model,
            (subject.inputs,),
            num_clusters=1,
            schedule=case.schedule,
            optimizer=optimizer,
            optimizer_params=params,
            recompute=case.recompute,
            update_frequency=UPDATE_FREQUENCY,
            self_test=False,
        )
    captured = capture_model(model, (subject.inputs,))
    table = cost_table(captured.costs)
    settings = PlanningSettings(
        schedule=Schedule.parse(case.schedule),
        optimizer=ask_optimizer(optimizer, params, list(model.parameters())),
        recompute=case.recompute,
        update_frequency=UPDATE_FREQUENCY,
    )
    memory = MemoryModel(table, settings, is_averaged=False)
    positions = table.positions.tolist()
    rows = []
    for stage in plan.stages:
        start, end = (positions.index(cut) for cut in stage.cut)
        parts = asdict(memory.budget(start, end, stage.index, len(plan.stages)))
        parts["runtime"] += stage.needed_bytes - sum(parts.values())  # that of this build of torch
        rows.append({"node": stage.node_id, "predicted_bytes": stage.needed_bytes, "parts": parts})
    return rows


if __name__ == "__main__":
    found = predict(Case(**json.loads(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps(found))
