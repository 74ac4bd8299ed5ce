"""The self-test passes every model of the small zoo, and catches what a broken split computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from capture_chain import even_cuts
from capture_zoo import CASES, build, call, captured

from ravnest.capture.splitting import split
from ravnest.capture.stage_file import write_stage
from ravnest.planning.self_test import prepare_test


def write(name: str, num_stages: int, folder: Path) -> list[Path]:
    """Writes a model of the zoo in stages; their folders from root to leaf."""
    folders = []
    for stage in split(captured(name), even_cuts(captured(name), num_stages)):
        folders.append(folder / str(stage.index))
        write_stage(stage, folders[-1])
    return folders


@pytest.mark.parametrize("name", CASES)
def test_every_model_of_the_zoo_passes(name: str, tmp_path: Path) -> None:
    args, kwargs = call(name)
    test = prepare_test(build(name), args, kwargs, captured(name))
    assert test is not None
    for num_stages in (1, 3):
        test.check(write(name, num_stages, tmp_path / str(num_stages)))
