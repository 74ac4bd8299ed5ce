"""Runs a Python script inside this process as `python SCRIPT ARGUMENTS` would run it."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from ravnest.errors import RavnestError


def run_script(script: Path, arguments: Sequence[str]) -> BaseException | None:
    """Runs a script as `__main__`; its imports come from its own folder first.

    Returns:
        How it ended when not by its last line: what it raised, or SystemExit.

    Raises:
        KeyboardInterrupt: the user stopped it.
    """
    with _as_main(script, arguments):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except (Exception, SystemExit) as error:
            return error
    return None


@contextlib.contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """What is printed inside goes to stderr, also what child processes and C code print."""
    stdout = sys.stdout
    stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        stdout.flush()  # of whoever had kept the object
        os.dup2(kept, 1)
        os.close(kept)


def script_traceback(error: BaseException, script: Path) -> str:
    """The traceback as python would print it: from the script's first line on."""
    frames = _from_script(error.__traceback__, script)
    shown = traceback.TracebackException(type(error), error, frames, compact=True)
    return "".join(shown.format())


def line_of(error: RavnestError, script: Path) -> int | None:
    """The last line of the script that led to an error, None when none of it did."""
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == str(script)
    ]
    return lines[-1] if lines else None


def _from_script(frames: TracebackType | None, script: Path) -> TracebackType | None:
    first = frames
    while first is not None and first.tb_frame.f_code.co_filename != str(script):
        first = first.tb_next
    return first


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    if not sys.flags.safe_path:
        sys.path[:1] = [str(script.resolve().parent)]
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
