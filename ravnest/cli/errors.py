"""How a command ends: one line for what a user can mend, and an exit code."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import Any

import typer
from typer.core import TyperGroup

from ravnest.errors import RavnestError


class ExitCode(IntEnum):
    """Of the `ravnest` command; a script's own exit code is passed on."""

    DONE = 0
    FAILED = 1
    USAGE = 2


class ErrorsInWords(TyperGroup):
    """A group of verbs whose expected errors are printed without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a verb; a RavnestError becomes text on stderr and exit code 1."""
        try:
            return super().invoke(ctx)
        except RavnestError as error:
            print_error(error)
            raise typer.Exit(ExitCode.FAILED) from error


def print_error(error: RavnestError, place: str = "") -> None:
    """Writes `error: ...` with its hint to stderr.

    Args:
        place: where in a script it came up, for a line of its own.
    """
    lines = f"error: {error}\n"
    if place:
        lines += f"  at {place}\n"
    sys.stderr.write(lines)
