"""Predicted step times beside `simulate` and beside real runs over links of a given rate and delay.

`python -m benchmarks.prediction [--json] [--quick]`. Needs Linux and root: every provider is a
process in a network namespace of its own (`benchmarks.links`), and says so and exits with 2
without. Before each run its links are measured with nothing else on them, and so is the speed of
the processor, by passes of the whole model in as many processes as the machine can run at once of
those that the plan will have. That speed, and the links as they were asked for less what headers of
packets take, are all that the plan knows.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

from benchmarks.links import MAX_ERROR, REPOSITORY, Access, Network, why_impossible
from benchmarks.prediction_models import TRAININGS, Training
from benchmarks.prediction_worker import OPTIMIZER_STATES
from benchmarks.report import Claim, finish, parse_arguments
from ravnest import clusterize
from ravnest.capture.exporting import capture_model
from ravnest.plan.model import Plan
from ravnest.planning.inputs.table import cost_table
from ravnest.simulate.simulator import simulate

MAX_PREDICTION_ERROR = 0.15
MAX_SIMULATION_ERROR = 0.10
NUM_CORES = 2
PORT = 8080
TIMEOUT_S = 300
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Case:
    """A plan to make, simulate and run.

    Attributes:
        title: for people.
        training: name in `TRAININGS`.
        hosts: how each node is connected; as many stages.
        num_steps: optimizer steps of the real run.
    """

    title: str
    training: str
    hosts: tuple[Access, ...]
    schedule: str
    update_frequency: int
    compression: bool | str
    num_steps: int

    @property
    def num_drained(self) -> int:
        """Last steps that are no steady state, because nothing follows them."""
        return 0 if self.schedule == "1f1b" else -(-len(self.hosts) // self.update_frequency)


CASES = (
    Case(
        "GPT over 2 stages, 1 Gbps, 2 ms, async: computing",
        *("wide gpt", (Access(1e9, 0.5e-3),) * 2, "async", 4, False, 14),
    ),
    Case(
        "GPT over 3 stages, 100 Mbps, 40 ms, 1f1b: links",
        *("narrow gpt", (Access(100e6, 10e-3),) * 3, "1f1b", 8, False, 12),
    ),
    Case(
        "CNN over 2 unequal nodes, 50 and 20 Mbps, 20 ms, 1f1b, int8: both",
        *("cnn", (Access(50e6, 3e-3), Access(20e6, 7e-3)), "1f1b", 4, "int8", 12),
    ),
)
QUICK = (
    Case(
        "GPT over 2 stages, 100 Mbps, 10 ms, 1f1b",
        *("narrow gpt", (Access(100e6, 2.5e-3),) * 2, "1f1b", 2, True, 5),
    ),
)


def main() -> int:
    """Runs the benchmark; 1 when a claim does not hold, 2 when it cannot be run here."""
    arguments = parse_arguments(__doc__ or "")
    if (reason := why_impossible()) is not None:
        print(f"no real runs over links here: {reason}", file=sys.stderr)
        return 2
    rows = []
    for case in QUICK if arguments.quick else CASES:
        rows.append(run_case(case))
        if not arguments.json:
            show(rows[-1])
    claims = [
        Claim(
            "error of the predicted step time beside a real run, largest of the plans",
            max(abs(row["predicted_step_s"] / row["real_step_s"] - 1) for row in rows),
            MAX_PREDICTION_ERROR,
        ),
        Claim(
            "distance of the simulated step time from the predicted, largest of the plans",
            max(abs(row["simulated_step_s"] / row["predicted_step_s"] - 1) for row in rows),
            MAX_SIMULATION_ERROR,
        ),
        Claim(
            "error of the emulated links in rate and round trip, largest of the links",
            max(link["error"] for row in rows for link in row["links"]),
            MAX_ERROR,
        ),
    ]
    return finish({"plans": rows}, claims, as_json=arguments.json)


def run_case(case: Case) -> dict[str, Any]:
    """One plan: predicted, simulated and real (median) seconds per optimizer step."""
    training = TRAININGS[case.training]()
    with (
        tempfile.TemporaryDirectory(prefix="ravnest-benchmark-") as folder,
        Network(case.hosts, is_tuned=True) as network,
    ):
        work = Path(folder)
        links = [check_link(network, host) for host in range(len(case.hosts) - 1)]
        flops = measured_flops(case, training, work)
        plan = make_plan(case, training, network, flops, work)
        real_s = real_steps(case, plan, network, work)
    assert plan.prediction is not None
    prediction = plan.prediction
    return {
        "title": case.title,
        "predicted_step_s": prediction.clusters[0].step_time_s,
        "simulated_step_s": simulate(plan).clusters[0].step_time_s,
        "real_step_s": statistics.median(real_s),
        "real_steps_s": real_s,
        "bottleneck": prediction.clusters[0].bottleneck,
        "order": plan.clusters[0],
        "cuts": [stage.cut for stage in plan.stages],
        "gflops": flops / 1e9,
        "passes_s": [[s.forward_s, s.backward_s, s.update_s] for s in prediction.stages],
        "link_bytes": {f"{ln.source}-{ln.target}": ln.num_bytes for ln in prediction.links},
        "links": links,
        "assumed": prediction.assumed,
    }


def check_link(network: Network, host: int) -> dict[str, float]:
    """The link from one host to the next as it is and as it was asked for."""
    check = network.check(host, host + 1)
    return {
        "rate_mbps": check.rate_bps / 1e6,
        "asked_rate_mbps": check.asked_rate_bps / 1e6,
        "round_trip_ms": check.round_trip_s * 1e3,
        "asked_round_trip_ms": check.asked_round_trip_s * 1e3,
        "error": check.error,
    }


def measured_flops(case: Case, training: Training, work: Path) -> float:
    """The planner's operations of a pass of the model over the seconds that it takes here."""
    outputs = [work / f"rate_{i}.json" for i in range(min(NUM_CORES, len(case.hosts)))]
    frequency = str(case.update_frequency)
    run_processes([["rate", case.training, str(output), frequency] for output in outputs], work)
    seconds = [statistics.median(json.loads(output.read_text())) for output in outputs]
    captured = capture_model(training.build(), (training.inputs,), {})
    return float(cost_table(captured.costs).work[-1]) / statistics.fmean(seconds)


def make_plan(case: Case, training: Training, network: Network, flops: float, work: Path) -> Plan:
    """Plans the case below `work`; bandwidth is what data gets of a link, as if measured."""
    node_data = work / "node_data"
    node_data.mkdir()
    nodes = {
        str(host): {
            "IP": f"{network.address(host)}:{PORT}",
            "benchmarks": {
                "ram": 8,
                "bandwidth": network.payload_share * access.rate_bps / 1e6,
                "latency": access.delay_s * 1e3,
                "flops": flops / 1e9,
            },
        }
        for host, access in enumerate(case.hosts)
    }
    (node_data / "node_configs.json").write_text(json.dumps(nodes))
    with redirect_stdout(StringIO()):
        return clusterize(
            training.build(),
            example_args=(training.inputs,),
            node_data=node_data,
            num_clusters=1,
            schedule=case.schedule,
            update_frequency=case.update_frequency,
            optimizer_states=OPTIMIZER_STATES,
            compression=case.compression,
        )


def real_steps(case: Case, plan: Plan, network: Network, work: Path) -> list[float]:
    """Seconds of each optimizer step of the root, between the pipeline's filling and draining."""
    options = {
        "schedule": case.schedule,
        "update_frequency": case.update_frequency,
        "compression": case.compression,
        "num_steps": case.num_steps,
    }
    commands = [
        ["provider", case.training, "node_data", json.dumps({**options, "name": f"node_{node}"})]
        for node in plan.clusters[0]
    ]
    run_processes(commands, work, [(network, node) for node in plan.clusters[0]])
    events = work / "events" / f"node_{plan.clusters[0][0]}.jsonl"
    records = [json.loads(line) for line in events.read_text().splitlines()]
    times = [datetime.fromisoformat(r["time"]) for r in records if r["event"] == "step"]
    kept = times[WARM_UP_STEPS - 1 : len(times) - case.num_drained]
    return [(b - a).total_seconds() for a, b in itertools.pairwise(kept)]


def run_processes(
    commands: Sequence[Sequence[str]],
    work: Path,
    places: Sequence[tuple[Network, int]] = (),
) -> None:
    """Runs workers at once, each in its host; RuntimeError with its output when one fails."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    processes, logs = [], []
    for number, command in enumerate(commands):
        line = [sys.executable, "-m", "benchmarks.prediction_worker", *command]
        if places:
            network, host = places[number]
            line = network.command(host, line)
        logs.append(work / f"log_{number}.txt")
        with logs[-1].open("wb") as output:
            processes.append(
                subprocess.Popen(
                    line, cwd=work, env=environment, stdout=output, stderr=subprocess.STDOUT
                )
            )
    try:
        for process, log in zip(processes, logs, strict=True):
            if process.wait(TIMEOUT_S) != 0:
                raise RuntimeError(f"{process.args} failed:\n{log.read_text()}")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def show(row: dict[str, Any]) -> None:
    """Prints one plan."""
    predicted_s = row["predicted_step_s"]
    print(f"\n{row['title']}\n  bottleneck: {row['bottleneck']}")
    for kind in ("predicted", "simulated", "real"):
        seconds = row[f"{kind}_step_s"]
        print(f"  {kind:10} {seconds:.3f} s per step, {seconds / predicted_s:.3f} of predicted")


if __name__ == "__main__":
    sys.exit(main())
