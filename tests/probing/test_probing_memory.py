"""Free memory is the least of what the system and each container around this process leave."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from ravnest.errors import ConfigError
from ravnest.planning.checking.available import _left_in_groups, available_memory_bytes
from ravnest.probing.memory import measure_memory

CPU = torch.device("cpu")


def test_what_is_offered_is_free_and_something_is_left() -> None:
    reading = measure_memory(CPU)
    assert 0 < reading.free_bytes <= psutil.virtual_memory().total
    assert reading.offered_bytes == reading.free_bytes - reading.kept_bytes
    assert reading.kept_bytes >= min(5e8, reading.free_bytes // 2)
    assert reading.source
    assert available_memory_bytes(CPU)


def write_group(folder: Path, limit: str, used: int, cache: int, *, legacy: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("limit_in_bytes", "usage_in_bytes") if legacy else ("max", "current")
    (folder / f"memory.{names[0]}").write_text(f"{limit}\n")
    (folder / f"memory.{names[1]}").write_text(f"{used}\n")
    field = "total_inactive_file" if legacy else "inactive_file"
    (folder / "memory.stat").write_text(f"anon 5\n{field} {cache}\nfile 7\n")


def left(tmp_path: Path, own: str) -> list[int]:
    (tmp_path / "own").write_text(own)
    groups = _left_in_groups(tmp_path / "cgroup", tmp_path / "own")
    return [free.num_bytes for free in groups]


def test_every_group_around_the_process_counts(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    write_group(root / "slice" / "job", "1000", used=600, cache=100)
    write_group(root / "slice", "max", used=600, cache=100)
    write_group(root, "5000", used=900, cache=0)
    assert left(tmp_path, "0::/slice/job\n") == [500, 4100]


def test_a_namespace_that_hides_the_path_has_its_limit_at_the_root(tmp_path: Path) -> None:
    write_group(tmp_path / "cgroup", "1000", used=400, cache=50)
    assert left(tmp_path, "0::/docker/0123abcd\n") == [650]


def test_the_older_layout_is_read(tmp_path: Path) -> None:
    write_group(tmp_path / "cgroup" / "memory" / "job", "1000", used=400, cache=500, legacy=True)
    assert left(tmp_path, "5:cpu,cpuacct:/job\n4:memory:/job\n") == [1000]


def test_more_used_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    write_group(tmp_path / "cgroup", "1000", used=4000, cache=0)
    assert left(tmp_path, "0::/\n") == [0]


def test_no_groups_no_limits(tmp_path: Path) -> None:
    assert left(tmp_path, "0::/\n") == []
    assert list(_left_in_groups(tmp_path, tmp_path / "missing")) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device that must be missing")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="'cuda:0' cannot be used: Torch not compiled"):
        measure_memory(torch.device("cuda:0"))


def test_a_device_that_does_not_say_is_refused() -> None:
    with pytest.raises(ConfigError, match="'meta' does not say") as caught:
        measure_memory(torch.device("meta"))
    assert "--ram" in (caught.value.hint or "")
