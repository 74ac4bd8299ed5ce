"""Runs every node of a plan in a thread of its own over the in-memory transport."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ravnest import Node, clusterize
from ravnest.plan.model import Plan
from ravnest.transport.interface import TransportSettings
from ravnest.transport.memory import MemoryNetwork

Script = Callable[[Node], Any]


@dataclass
class Run:
    """A plan, and what its nodes returned or raised.

    Attributes:
        results, errors: by node id.
    """

    folder: Path
    plan: Plan
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)

    def result_of(self, stage: int, cluster: int = 0) -> Any:
        """What the node at a position returned."""
        return self.results[self.plan.clusters[cluster][stage]]

    def slack(self, stage: int, cluster: int = 0) -> int:
        """Microbatches that the plan lets a stage start beyond the least."""
        assert self.plan.prediction is not None
        node_id = self.plan.clusters[cluster][stage]
        return next(s.slack for s in self.plan.prediction.stages if s.node_id == node_id)

    def events(self, node_id: int, name: str) -> list[dict[str, Any]]:
        """Events of one name that a node has logged."""
        lines = (self.folder / "events" / f"node_{node_id}.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]


def make_plan(
    folder: Path,
    model: torch.nn.Module,
    example: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    nodes: int = 3,
    clusters: int = 1,
    schedule: str | None = "1f1b",
    **benchmarks: float,
) -> Run:
    """Plans `model` for nodes that exist in this process only.

    Args:
        schedule: of the plan, and of nodes that say none.
        benchmarks: of every node, as in node_configs.json.
    """
    node_data = folder / "node_data"
    node_data.mkdir(parents=True)
    benchmarks = {"ram": 4, "bandwidth": 1000, **benchmarks}
    entries = {
        str(node): {"IP": f"127.0.0.1:{9000 + node}", "benchmarks": benchmarks}
        for node in range(nodes)
    }
    (node_data / "node_configs.json").write_text(json.dumps(entries))
    with contextlib.redirect_stdout(io.StringIO()):
        plan = clusterize(
            model,
            example,
            kwargs,
            node_data=node_data,
            num_clusters=clusters,
            schedule=schedule,
        )
    return Run(folder, plan)


def run_nodes(
    run: Run,
    script: Script,
    *,
    timeout_s: float = 30,
    arguments: dict[str, Any] | None = None,
    each: dict[int, dict[str, Any]] | None = None,
    network: MemoryNetwork | None = None,
    **more: Any,
) -> Run:
    """Runs `script` on every node of the plan.

    Args:
        arguments, more: of every `Node`.
        each: of single ones, by node id; they go before.
    """
    network = network or MemoryNetwork()
    settings = TransportSettings(timeout_s=timeout_s)

    def work(node_id: int) -> None:
        try:
            with Node(
                f"node_{node_id}",
                transport=network.transport(node_id, settings),
                node_data=run.folder / "node_data",
                trained=run.folder / "trained",
                events=run.folder / "events",
                loss_filename=run.folder / "losses.txt",
                val_filename=run.folder / "val_accuracies.txt",
                **{**(arguments or {}), **more, **(each or {}).get(node_id, {})},
            ) as node:
                run.results[node_id] = script(node)
        except BaseException as error:
            run.errors[node_id] = error

    threads = [
        threading.Thread(target=work, args=(stage.node_id,), name=f"node_{stage.node_id}")
        for stage in run.plan.stages
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 30)
        assert not thread.is_alive(), f"{thread.name} hangs"
    return run


def run_cleanly(run: Run, script: Script, **arguments: Any) -> Run:
    """`run_nodes`, and no node may raise."""
    run_nodes(run, script, **arguments)
    for error in run.errors.values():
        raise error
    return run
