"""Whose business the allocator is."""

from __future__ import annotations

import platform

import pytest

from ravnest.transport.allocator import keep_freed_chunks


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_glibc_takes_the_thresholds():
    assert keep_freed_chunks()


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_has_tuned_is_left_alone(monkeypatch, name):
    monkeypatch.setenv(name, "2")
    assert not keep_freed_chunks()
