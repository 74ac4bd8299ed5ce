"""Range maxima against the plain maximum."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ravnest.planning.inputs.ranges import RangeMax

values = st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=40).map(np.array)


@given(values)
def test_every_range_at_once(array: np.ndarray) -> None:
    start, end = np.arange(len(array))[:, None], np.arange(len(array) + 1)[None, :]
    found = RangeMax(array).over(start, end)
    for i in range(len(array)):
        for j in range(i + 1, len(array) + 1):
            assert found[i, j] == array[i:j].max()


@given(values, st.data())
def test_joined_ranges_have_the_maxima_of_their_parts(
    array: np.ndarray, data: st.DataObject
) -> None:
    kept = sorted({0, *data.draw(st.sets(st.integers(0, len(array) - 1)))})
    joined = RangeMax(array).joined(np.array(kept))
    ends = [*kept[1:], len(array)]
    assert joined.values.tolist() == [array[i:j].max() for i, j in zip(kept, ends, strict=True)]
