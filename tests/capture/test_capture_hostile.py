"""Generated hostile stage files: every one is refused, and nothing of any is run.

Nothing is run means: while a file is loaded, Python's audit hooks see no file opened but the
stage's own two, no import, no process, no socket and no code executed (a good file's program is
compiled, which they do see); torch's dispatcher sees no operator but those that reading weights
takes; and the canary, an operator of a library of its own, is never called.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from capture_hostile import (
    DANGEROUS,
    FAMILIES,
    REFUSED_OPERATORS,
    Good,
    Hostile,
    every_operator,
    hostile_files,
)
from capture_zoo import captured
from hypothesis import HealthCheck, given, settings
from torch.utils._python_dispatch import TorchDispatchMode

from ravnest.capture import operators
from ravnest.capture.splitting import split
from ravnest.capture.stage_file import GRAPH_FILE, WEIGHTS_FILE, load_stage, write_stage
from ravnest.errors import PlanFileError

NUM_FILES = 300
MODELS = ("gpt", "dict", "several", "buffers")


class Watch:
    """Counts what must not happen. Audit hooks cannot be taken off, so this one is switched."""

    def __init__(self) -> None:
        self.is_on = False
        self.own: set[str] = set()
        self.seen: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event == "open":
            if os.fspath(args[0]) not in self.own:
                self.seen.append(f"open {args[0]!r}")
        elif event.partition(".")[0] in _REFUSED or event in _REFUSED:
            self.seen.append(f"{event} {str(args)[:100]}")

    @contextmanager
    def watching(self, folder: Path) -> Iterator[None]:
        self.own = {str(folder / GRAPH_FILE), str(folder / WEIGHTS_FILE)}
        self.seen.clear()
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False


# Not "compile", which inspect.signature raises when it parses what a builtin says of itself.
_REFUSED = frozenset(
    {
        *("import", "exec", "marshal", "pickle", "ctypes", "mmap", "os", "subprocess", "socket"),
        *("shutil", "tempfile", "glob", "urllib", "ssl", "fcntl", "signal", "sqlite3", "winreg"),
        *("webbrowser", "sys.settrace", "sys.setprofile", "sys.addaudithook"),
    }
)


class Dispatched(TorchDispatchMode):
    """Notes every operator that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Canary:
    """An operator registered with torch that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.library = torch.library.Library("canary", "DEF")
        self.library.define("sing(Tensor x) -> Tensor")
        self.library.impl("sing", self._sing, "CompositeImplicitAutograd")

    def _sing(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture(scope="module")
def canary() -> Iterator[Canary]:
    canary = Canary()
    assert torch.ops.canary.sing(torch.ones(1)).item() == 1
    assert canary.calls == 1
    canary.calls = 0
    yield canary
    canary.library._destroy()


@pytest.fixture(scope="module")
def goods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Good]:
    """A good stage of each model."""
    made = {}
    for name in MODELS:
        folder = tmp_path_factory.mktemp(name)
        write_stage(split(captured(name), [])[0], folder)
        made[name] = Good((folder / GRAPH_FILE).read_bytes(), (folder / WEIGHTS_FILE).read_bytes())
    return made


def test_hostile_stage_files_are_refused_and_nothing_is_run(
    goods: dict[str, Good], watch: Watch, canary: Canary, tmp_path: Path
) -> None:
    counts: dict[str, int] = {}
    of_reading: set[str] = set()
    dispatched = Dispatched()

    def load(files: Good | Hostile) -> None:
        (tmp_path / GRAPH_FILE).write_bytes(files.graph)
        (tmp_path / WEIGHTS_FILE).write_bytes(files.weights)
        dispatched.seen.clear()
        with dispatched, watch.watching(tmp_path):
            load_stage(tmp_path)

    for good in goods.values():  # it also imports what is imported late
        load(good)
        of_reading.update(dispatched.seen)
    assert not of_reading & {"aten.linear.default", "aten.add.Tensor", "aten.mm.default"}
    assert any(event.startswith("exec") for event in watch.seen), "a good program is compiled"

    @settings(
        max_examples=NUM_FILES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(files=hostile_files(goods))
    def refused(files: Hostile) -> None:
        with pytest.raises(PlanFileError):
            load(files)
        assert watch.seen == []
        # Weights are read only once the graph has passed; reading them takes torch some operators.
        assert set(dispatched.seen) <= of_reading
        assert not dispatched.seen or files.family in ("weights", "declarations")
        assert canary.calls == 0
        counts[files.family] = counts.get(files.family, 0) + 1

    refused()
    assert sum(counts.values()) >= 200
    assert min(counts.get(family, 0) for family in (*FAMILIES, "weights")) >= 10


def test_no_dangerous_operator_is_found(canary: Canary) -> None:
    assert [name for name in DANGEROUS if operators.find(name) is not None] == []
    assert len(REFUSED_OPERATORS) > 1000
    assert "canary::sing.default" in every_operator()
    allowed = {name for name in every_operator() if operators.find(name) is not None}
    assert {name.partition("::")[0] for name in allowed} == {"aten"}
