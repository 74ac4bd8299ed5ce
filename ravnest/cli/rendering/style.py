"""What all text has in common: one console, one meaning per colour, bars, columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

EMPHASIS, DIM, WARNING, FAILURE = "bold", "dim", "yellow", "bold red"
GOOD = "green"

_HIGH, _FULL = 0.75, 0.9
_BAR_WIDTH = 8
_LONG_BAR_WIDTH = 16
_WIDE_COLUMNS = 100


def open_console() -> Console:
    """For stdout: colours and line-drawing only on a terminal; 80 columns elsewhere."""
    return Console(highlight=False, markup=False, emoji=False)


def level_style(share: float) -> str:
    """The colour of how full something is: green, yellow from 75 %, red from 90 %."""
    if share >= _FULL:
        return "red"
    return "yellow" if share >= _HIGH else "green"


def bar(console: Console, share: float) -> Text:
    """A bar filled to a share; ASCII where the output is no terminal."""
    width = _BAR_WIDTH if console.width < _WIDE_COLUMNS else _LONG_BAR_WIDTH
    filled = min(width, max(round(width * share), 1 if share > 0 else 0))
    full, empty = ("━", "─") if draws_lines(console) else ("#", ".")
    return Text.assemble((full * filled, level_style(share)), (empty * (width - filled), DIM))


def draws_lines(console: Console) -> bool:
    """Whether characters beyond ASCII are welcome."""
    return console.is_terminal and console.encoding.startswith("utf")


def line(*parts: str | Text | tuple[str, str]) -> Text:
    """Text put together from plain and styled pieces."""
    return Text.assemble(*parts)


def columns(headings: Sequence[str], rows: Sequence[Sequence[str | Text]], left: str = "") -> Table:
    """A table without lines: aligned columns below dim headings.

    Args:
        headings: one per column; all empty for none.
        left: a letter per column, `l` for left-aligned; right-aligned beyond its end.
    """
    table = Table(
        box=None,
        show_header=any(headings),
        header_style=DIM,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    for index, heading in enumerate(headings):
        is_left = left[index : index + 1] == "l"
        table.add_column(heading, justify="left" if is_left else "right", no_wrap=not is_left)
    for row in rows:
        table.add_row(*row)
    return table


def indented(content: RenderableType) -> Padding:
    """One level deeper."""
    return Padding(content, (0, 0, 0, 2), expand=False)


def bullets(console: Console, heading: str, items: Sequence[str]) -> None:
    """A heading and its items, wrapped under their own start."""
    if not items:
        return
    console.print(line((heading, EMPHASIS)))
    for item in items:
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row("-", item)
        console.print(indented(row))
