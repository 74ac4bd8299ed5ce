"""The `ravnest` command itself: version, help, how quickly it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ravnest import __version__

REPOSITORY = Path(__file__).resolve().parents[2]
IMPORTED = """
import sys
from ravnest.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit as ended:
    heavy = {"torch", "numpy", "scipy", "grpc"} & sys.modules.keys()
    assert ended.code == 0, ended.code
    assert not heavy, f"imported: {heavy}"
"""


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("plan", "--help")])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ravnest", "--version"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"ravnest {__version__}\n"
