"""Runs a written plan event by event and shows what came of it."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ravnest.errors import ConfigError, PlanFileError
from ravnest.plan.codec import decode
from ravnest.plan.files import load_plan
from ravnest.plan.layout import PLAN_FILE
from ravnest.plan.model import Plan
from ravnest.plan.prediction import Prediction
from ravnest.simulate.result import SimulationResult
from ravnest.simulate.settings import SimulationSettings
from ravnest.simulate.simulator import simulate
from ravnest.simulate.wiring import prediction_of

_NODE_DATA = "node_data"


@dataclass(frozen=True, slots=True)
class Picture:
    """A timeline to draw.

    Attributes:
        num_steps: optimizer steps in it.
        with_links: a row for each kind of traffic between two nodes too.
    """

    path: Path
    num_steps: int
    with_links: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What is wanted.

    Attributes:
        source: plan.json, or a folder it is in.
        picture: None for none.
    """

    source: Path
    settings: SimulationSettings
    picture: Picture | None
    as_json: bool


def run_plan(run: Run) -> None:
    """Loads, simulates and shows a plan.

    Raises:
        PlanFileError: there is none, it is damaged, or it has no prediction.
        ConfigError: the settings name a node that has no part in it, or the picture cannot be
            written.
    """
    plan = load_plan_from(run.source)
    result = simulate(plan, run.settings)
    if run.picture is not None:
        _draw(plan, result, run.picture)
    if run.as_json:
        json.dump(document(plan, run.settings, result), sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        from ravnest.cli.rendering.simulation_text import show_simulation
        from ravnest.cli.rendering.style import open_console

        show_simulation(open_console(), plan, run.settings, result)
    sys.stdout.flush()


def load_plan_from(source: Path) -> Plan:
    """The plan in a file, in a folder, or in the node_data folder of a folder."""
    if source.is_dir():
        below = source / _NODE_DATA
        if not (source / PLAN_FILE).exists() and (below / PLAN_FILE).exists():
            return load_plan(below)
        return load_plan(source)
    if source.name == PLAN_FILE:
        return load_plan(source.parent)
    try:
        content = source.read_bytes()
    except OSError as error:
        raise PlanFileError(f"{source} cannot be read: {error.strerror or error}") from error
    return decode(Plan, content, source)


def document(plan: Plan, settings: SimulationSettings, result: SimulationResult) -> dict[str, Any]:
    """Everything but the timeline as JSON data; what is infinite becomes null."""
    found = _plain(dataclasses.replace(result, timeline=None))
    del found["timeline"]
    chosen = _plain(settings)
    del chosen["timeline"]
    return {
        "model": plan.model,
        "plan_sha256": plan.sha256,
        "settings": chosen,
        "predicted": _predicted(prediction_of(plan)),
        "simulated": found,
    }


def _predicted(prediction: Prediction) -> dict[str, Any]:
    return {
        "samples_per_s": prediction.samples_per_s,
        "averaging_s": prediction.averaging_s,
        "step_time_s": [cluster.step_time_s for cluster in prediction.clusters],
        "busy": {str(stage.node_id): stage.busy for stage in prediction.stages},
    }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, str) else value


def _draw(plan: Plan, result: SimulationResult, picture: Picture) -> None:
    from ravnest.cli.rendering.picture.timeline import draw_timeline

    drawn = draw_timeline(plan, result, picture.num_steps, with_links=picture.with_links)
    try:
        picture.path.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{picture.path} cannot be written: {error.strerror or error}") from error
