"""`ravnest plan`: its parameters; what it does is imported when it is done, to start quickly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plan(
    script: Annotated[
        Path | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            metavar="SCRIPT",
            help="A script that calls clusterize.",
            show_default=False,
        ),
    ] = None,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGUMENTS", help="Of the script.", show_default=False),
    ] = None,
    node_data: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Show the plan that is written in this folder."
        ),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHANGE",
            help="Plan again with a change, such as node.2.ram=16, '+node ram=16,bandwidth=100', "
            "-node.3, compression=int8 or batch=2x; repeatable.",
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Draw the plan into this file.")
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            allow_dash=True,
            metavar="FILE.svg|-",
            help="Draw who does what when, in the first steps of a simulated run; '-' prints it.",
        ),
    ] = None,
    timeline_steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Optimizer steps of the timeline.")
    ] = 2,
    memory: Annotated[
        bool, typer.Option("--memory", help="Show what the memory of each node is for.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else on stdout.")
    ] = False,
) -> None:
    """Show what a script would plan, without writing anything.

    Runs SCRIPT with every call of clusterize in it turned into a dry run, and shows clusters,
    stages, memory, times and links of each plan.
    """
    from ravnest.cli.presenting import Output, present_folder, present_script
    from ravnest.cli.whatif.grammar import parse_changes
    from ravnest.errors import ConfigError

    if (script is None) == (node_data is None):
        raise typer.BadParameter("expected either SCRIPT or --node-data DIRECTORY")
    if what_if and script is None:
        raise typer.BadParameter(
            "a written plan has no model in it to plan again; name the script that made it",
            param_hint="--what-if",
        )
    if svg is not None and not svg.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {svg.parent}", param_hint="--svg")
    if timeline is not None:
        _check_timeline(timeline, as_json=as_json)
    try:
        changes = parse_changes(what_if or [])
    except ConfigError as error:
        raise typer.BadParameter(str(error), param_hint="--what-if") from error
    output = Output(as_json, svg, memory, timeline, timeline_steps)
    if script is not None:
        present_script(script, arguments or [], changes, output)
    elif node_data is not None:
        present_folder(node_data, output)


def _check_timeline(path: Path, *, as_json: bool) -> None:
    if str(path) == "-":
        if as_json:
            raise typer.BadParameter(
                "stdout is for the JSON object; name a file", param_hint="--timeline"
            )
    elif not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}", param_hint="--timeline")
