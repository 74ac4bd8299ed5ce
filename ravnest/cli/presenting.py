"""Shows plans as they were asked for, and ends the command as the script that made them ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import typer

from ravnest.cli.errors import ExitCode, print_error
from ravnest.cli.rehearsing import Rehearsal, Rehearsed
from ravnest.cli.scripts import line_of, run_script, script_traceback, stdout_on_stderr
from ravnest.cli.whatif.changes import Change
from ravnest.errors import ConfigError, RavnestError
from ravnest.plan.files import load_plan
from ravnest.plan.model import Plan
from ravnest.planning.overriding import taking_calls

_NO_CALL_HINT = (
    "call ravnest.clusterize(model, ...) in it; calls in other threads and processes are not seen"
)


@dataclass(frozen=True, slots=True)
class Output:
    """What is wanted.

    Attributes:
        as_json: one JSON object on stdout, instead of text.
        svg: where to draw the plan, None for no picture.
        with_memory: also what each node's memory is for, in text.
        timeline: where to draw the first steps of a run, "-" for text on stdout, None for nowhere.
        timeline_steps: how many.
    """

    as_json: bool
    svg: Path | None
    with_memory: bool
    timeline: Path | None = None
    timeline_steps: int = 2


def present_folder(node_data: Path, output: Output) -> None:
    """Shows the plan that is written below `node_data`.

    Raises:
        PlanFileError: there is none, or it is damaged.
    """
    _show(str(node_data), [Rehearsed(load_plan(node_data))], (), output, None)


def present_script(
    script: Path, arguments: Sequence[str], changes: Sequence[Change], output: Output
) -> None:
    """Runs a script with its calls of clusterize taken, and shows what they would plan.

    Raises:
        typer.Exit: the script failed, or a call has no plan with the changes.
    """
    rehearsal = Rehearsal(changes)
    with ExitStack() as stack:
        if output.as_json:
            stack.enter_context(stdout_on_stderr())
        with taking_calls(rehearsal.take):
            ending = run_script(script, arguments)
    calls = rehearsal.calls
    if ending is None and not calls:
        ending = ConfigError(f"{script} has ended without a call of clusterize", hint=_NO_CALL_HINT)
    _show(str(script), calls, changes, output, ending)
    if ending is not None:
        _end(script, ending)
    if any(isinstance(call.changed, RavnestError) for call in calls):
        raise typer.Exit(ExitCode.FAILED)


def _show(
    source: str,
    calls: Sequence[Rehearsed],
    changes: Sequence[Change],
    output: Output,
    ending: BaseException | None,
) -> None:
    """Everything that goes to stdout or into a file."""
    from ravnest.cli.rendering.document import document
    from ravnest.cli.rendering.report import show_calls
    from ravnest.cli.rendering.style import open_console

    if output.svg is not None:
        _draw(calls, output.svg)
    if output.as_json:
        failure = None if isinstance(ending, SystemExit) else ending
        found = document(source, calls, changes, failure)
        json.dump(found, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    else:
        # What ended the script is said once, at the end.
        shown = [call for call in calls if call.plan is not ending or call.changed is not None]
        show_calls(open_console(), shown, changes, with_memory=output.with_memory)
    if output.timeline is not None:
        _show_timelines(calls, output.timeline, output.timeline_steps)
    sys.stdout.flush()


def _draw(calls: Sequence[Rehearsed], path: Path) -> None:
    """A picture per plan; of a what-if the changed one. Several get numbers in their names."""
    from ravnest.cli.rendering.picture import draw_plan

    _write([draw_plan(each) for each in _plans(calls)], path)


def _show_timelines(calls: Sequence[Rehearsed], path: Path, num_steps: int) -> None:
    """The first steps of a simulated run of each plan, drawn or, to stdout or no SVG, as text."""
    from ravnest.cli.rendering.picture.timeline import draw_timeline
    from ravnest.cli.rendering.timeline_text import timeline_text
    from ravnest.simulate.settings import SimulationSettings
    from ravnest.simulate.simulator import simulate

    shown = draw_timeline if path.suffix.lower() == ".svg" else timeline_text
    made = []
    for plan in _plans(calls):
        # Further steps after those, so that a pipeline without a flush does not run empty in them.
        depth = max(map(len, plan.clusters))
        settings = SimulationSettings(num_steps=num_steps + depth, timeline=True)
        made.append(shown(plan, simulate(plan, settings), num_steps))
    if str(path) == "-":
        sys.stdout.write("\n".join(made))
        sys.stdout.flush()
    else:
        _write(made, path)


def _plans(calls: Sequence[Rehearsed]) -> list[Plan]:
    """The plan of every call that has one; of a what-if the changed one."""
    outcomes = [call.plan if call.changed is None else call.changed for call in calls]
    return [outcome for outcome in outcomes if isinstance(outcome, Plan)]


def _write(texts: Sequence[str], path: Path) -> None:
    for number, text in enumerate(texts, start=1):
        target = path if len(texts) == 1 else path.with_stem(f"{path.stem}-{number}")
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{target} cannot be written: {error.strerror or error}") from error


def _end(script: Path, ending: BaseException) -> None:
    """Ends the command as the script ended; returns when that was in order."""
    if isinstance(ending, SystemExit):
        if ending.code is None or ending.code == 0:
            return
        if isinstance(ending.code, int):
            raise typer.Exit(ending.code)
        sys.stderr.write(f"{ending.code}\n")
    elif isinstance(ending, RavnestError):
        line = line_of(ending, script)
        print_error(ending, "" if line is None else f"{script}, line {line}")
    else:
        sys.stderr.write(script_traceback(ending, script))
    raise typer.Exit(ExitCode.FAILED)
