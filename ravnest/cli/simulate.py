"""`ravnest simulate`: its parameters. What it does is imported when it is done."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def simulate(
    source: Annotated[
        Path,
        typer.Argument(
            exists=True,
            metavar="PLAN_OR_FOLDER",
            help="plan.json, or the folder that clusterize wrote it into.",
            show_default=False,
        ),
    ] = Path("node_data"),
    steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Optimizer steps of every cluster; by default enough for a steady state and two "
            "averaging rounds.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    jitter: Annotated[
        float,
        typer.Option(min=0.0, metavar="MS", help="Mean random delay of every message."),
    ] = 0.0,
    variation: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SHARE",
            help="How much the time of one pass varies: standard deviation over mean, such as 0.2.",
        ),
    ] = 0.0,
    speed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE=FACTOR",
            help="node.3=0.5 makes node 3 compute half as fast as planned; repeatable.",
        ),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NODE@TIME[+DURATION]",
            help="node.2@30s ends node 2 after 30 s, node.2@30s+10s freezes it for 10 s; "
            "repeatable.",
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE.svg", help="Draw who does what when."),
    ] = None,
    timeline_steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Optimizer steps that are drawn.")
    ] = 3,
    links: Annotated[bool, typer.Option("--links", help="Draw links too, a row each.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else on stdout.")
    ] = False,
) -> None:
    """Run a written plan event by event, without computing anything.

    Shows throughput beside the plan's prediction, how busy nodes and links are, how stale weights
    get, and what comes of failures.
    """
    from ravnest.cli.simulating import Picture, Run, run_plan
    from ravnest.cli.simulation_options import parse_failures, parse_speeds
    from ravnest.errors import ConfigError
    from ravnest.simulate.settings import SimulationSettings

    if timeline is None and links:
        raise typer.BadParameter(
            "it is for the picture: add --timeline FILE.svg", param_hint="--links"
        )
    if timeline is not None and not timeline.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {timeline.parent}", param_hint="--timeline")
    try:
        settings = SimulationSettings(
            num_steps=steps,
            seed=seed,
            jitter_s=jitter / 1e3,
            speeds=parse_speeds(speed or []),
            speed_variation=variation,
            failures=parse_failures(fail or []),
            timeline=timeline is not None,
        )
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    picture = None if timeline is None else Picture(timeline, timeline_steps, links)
    run_plan(Run(source, settings, picture, as_json))
