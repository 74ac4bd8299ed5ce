"""The `ravnest` command."""

from __future__ import annotations

from typing import Annotated

import typer

from ravnest import __version__
from ravnest.cli.benchmark import benchmark
from ravnest.cli.errors import ErrorsInWords
from ravnest.cli.plan import plan
from ravnest.cli.simulate import simulate

app = typer.Typer(
    name="ravnest",
    cls=ErrorsInWords,
    help="Train any PyTorch model across unequal machines on ordinary links.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(plan)
app.command()(benchmark)
app.command()(simulate)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"ravnest {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Keeps verbs as verbs while there are few of them."""
