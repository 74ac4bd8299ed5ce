"""Fragments: every name in exactly one, about equal in size, the same for everybody."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ravnest.averaging.fragments import Part


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 12))
def test_every_name_is_in_one_part_and_parts_are_even(sizes: list[int], count: int) -> None:
    names = [f"t{i}" for i in range(len(sizes))]
    by_name = dict(zip(names, sizes, strict=True))
    parts = [Part(index, count).of(names, by_name) for index in range(count)]
    assert [name for part in parts for name in part] == names
    for part in parts:
        held = sum(by_name[name] for name in part)
        assert held <= sum(sizes) / count + max(sizes, default=0)


def test_one_part_is_everything() -> None:
    assert Part().of(["a", "b"], {}) == ("a", "b")


def test_parts_of_equal_tensors_are_neighbours() -> None:
    names = list("abcdef")
    sizes = dict.fromkeys(names, 7)
    assert [Part(i, 3).of(names, sizes) for i in range(3)] == [("a", "b"), ("c", "d"), ("e", "f")]
