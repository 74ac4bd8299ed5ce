"""What came of the calls of clusterize, for people: each plan, and what changes would do to it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ravnest.cli.rehearsing import Outcome, Rehearsed
from ravnest.cli.rendering.comparison import compare
from ravnest.cli.rendering.comparison_text import show_comparison
from ravnest.cli.rendering.plan_text import show_plan
from ravnest.cli.rendering.style import EMPHASIS, FAILURE, indented, line
from ravnest.cli.whatif.changes import Change
from ravnest.errors import RavnestError
from ravnest.plan.model import Plan


def show_calls(
    console: Console,
    calls: Sequence[Rehearsed],
    changes: Sequence[Change] = (),
    *,
    with_memory: bool = False,
) -> None:
    """Prints every call, with the changes where some were asked for."""
    for number, call in enumerate(calls, start=1):
        if number > 1:
            console.print()
        if len(calls) > 1:
            title = f"Call {number} of {len(calls)} of clusterize"
            console.print(line((title, f"{EMPHASIS} underline")))
            console.print()
        if call.changed is None:
            _show_outcome(console, call.plan, "there is no plan", with_memory=with_memory)
        else:
            _show_what_if(console, call, call.changed, changes, with_memory=with_memory)


def _show_what_if(
    console: Console,
    call: Rehearsed,
    changed: Outcome,
    changes: Sequence[Change],
    *,
    with_memory: bool,
) -> None:
    """The changed plan in full, then what is different."""
    if isinstance(changed, Plan):
        show_plan(console, changed, with_memory=with_memory)
        console.print()
    console.print(line(("What if ", EMPHASIS), ", ".join(map(str, changes))))
    for note in call.notes:
        console.print(indented(note))
    if isinstance(call.plan, Plan) and isinstance(changed, Plan):
        show_comparison(console, compare(call.plan, changed))
        return
    for outcome, words in ((call.plan, "as it is"), (changed, "with the changes")):
        if isinstance(outcome, RavnestError):
            _show_outcome(console, outcome, f"{words} there is no plan")
        else:
            console.print(f"{words} there is a plan")


def _show_outcome(
    console: Console, outcome: Outcome, failed: str, *, with_memory: bool = False
) -> None:
    if isinstance(outcome, Plan):
        show_plan(console, outcome, with_memory=with_memory)
    else:
        console.print(line((failed, FAILURE), ": ", str(outcome)))
