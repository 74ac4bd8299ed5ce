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
    assert plan.prediction is not None
    return [
        {
            "node": stage.node_id,
            "predicted_bytes": stage.memory.total,
            "parts": asdict(stage.memory),
        }
        for stage in plan.prediction.stages
    ]


if __name__ == "__main__":
    found = predict(Case(**json.loads(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps(found))
