"""The `ravnest` command."""

from __future__ import annotations

import typer

from ravnest.cli.benchmark import benchmark

app = typer.Typer(
    name="ravnest",
    help="Train any PyTorch model across unequal machines on ordinary links.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(benchmark)


@app.callback()
def _root() -> None:
    """Keeps verbs as verbs while there are few of them."""
