"""`python -m ravnest` is the `ravnest` command."""

from ravnest.cli.main import app

app(prog_name="ravnest")
